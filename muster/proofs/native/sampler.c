/* Seeded sampling in one pass over the logits: the maximum of logits / temperature + noise, and log-probabilities.

The noise is that of muster/sampling.py, which is also this file's portable twin. Both of its logarithms are dear, and
nearly no token needs them. A token with scaled logit s beats the best so far only if -log(-log u) >= best - s, that is
-log u <= exp(s - best), and 1 - u <= -log u: so only if 1 - u <= exp(s - best). The exponential is there anyway, since
the log-probabilities sum it, and 1 - u is an integer away from the hash. Of a row of 152,000 logits some dozens pass
that test; they are computed as the twin does, in float32.

Loops over LANES values stand where the compiler is to use vector registers: it may not reorder sums by itself. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK = 256, LANES = 32 };

/* A row is CLOSE, and left to the portable code, when the two best are so near to each other that the last bits of a
   logarithm decide, or when its logits are not numbers to compare. */
enum { DECIDED = 0, CLOSE = 1 };

static uint32_t mix(uint32_t x, uint32_t between) {
    x ^= x >> 16;
    x = (x * 0x7FEB352Du) ^ between;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ x >> 16;
}

typedef struct {
    uint32_t first, second;
} Keys;

static Keys keys_of(int64_t seed, int64_t position) {
    uint32_t key = mix((uint32_t)seed + 0x9E3779B9u, 0);
    key = mix(key ^ (uint32_t)((uint64_t)seed >> 32), 0);
    const uint32_t first = mix(key + (uint32_t)position, 0);
    return (Keys){first, mix(first + 0x85EBCA6Bu, 0)};
}

/* The 23 bits of a token's noise. */
static int32_t fraction_of(Keys keys, int64_t token) {
    return (int32_t)(mix(keys.first + (uint32_t)token * 0x9E3779B9u, keys.second) >> 9);
}

static float noised(float scaled, Keys keys, int64_t token) {
    const float u = ((float)fraction_of(keys, token) + 0.5f) * 0x1p-23f;
    return scaled - logf(-logf(u));
}

/* exp(x) for x <= 0, to 2 units in the last place; about 1e-38 where it would be less, NaN for NaN. */
static inline float exp_of(float x) {
    x = x < -87.0f ? -87.0f : x;
    const float shifted = x * 1.44269504f + 0x1.8p23f; /* the nearest integer to x / ln 2 is in the low bits */
    const float whole = shifted - 0x1.8p23f;
    const float rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float sum = 1.98756915e-4f; /* Cephes' expf */
    sum = sum * rest + 1.39819995e-3f;
    sum = sum * rest + 8.33345191e-3f;
    sum = sum * rest + 4.16657963e-2f;
    sum = sum * rest + 1.66666655e-1f;
    sum = sum * rest + 0.5f;
    sum = sum * rest * rest + rest + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4B400000u + 127u) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

/* What is known of a row after some of its blocks. */
typedef struct {
    Keys keys;
    float highest;  /* scaled logit; the sum's terms are relative to it */
    double sum;     /* of exp(scaled - highest) */
    float best;     /* noised */
    int64_t token;  /* the best one's */
    float tolerance;
    float bound; /* a token whose exp(scaled - highest) * bound is below 2^23 (1 - u) cannot come near the best */
    int close;
} Row;

static void set_bound(Row *row) {
    row->tolerance = 1e-5f + 4e-7f * fabsf(row->best);
    const double reach = (double)row->highest - row->best + row->tolerance;
    row->bound = row->best == -INFINITY ? INFINITY : (float)fmin(0x1p23 * 1.001 * exp(reach), FLT_MAX);
}

static void consider(Row *row, float value, int64_t token) {
    if (!(value > -INFINITY) || value < row->best - row->tolerance)
        return;
    if (value > row->best) {
        row->close = (row->close || row->token >= 0) && value - row->best <= row->tolerance;
        row->best = value;
        row->token = token;
        set_bound(row);
    } else {
        row->close = 1;
    }
}

static void take_block(Row *row, const float *scaled, int64_t start) {
    float terms[BLOCK], missing[BLOCK], highest[LANES], sums[LANES] = {0};
    memcpy(highest, scaled, sizeof highest);
    for (int i = 0; i < BLOCK; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            highest[lane] = scaled[i + lane] > highest[lane] ? scaled[i + lane] : highest[lane];
    float block_highest = -INFINITY;
    for (int lane = 0; lane < LANES; lane++)
        block_highest = highest[lane] > block_highest ? highest[lane] : block_highest;
    if (block_highest > row->highest) {
        row->sum *= exp((double)row->highest - block_highest);
        row->highest = block_highest;
        set_bound(row);
    }

    for (int i = 0; i < BLOCK; i++)
        terms[i] = exp_of(scaled[i] - row->highest);
    for (int i = 0; i < BLOCK; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            sums[lane] += terms[i + lane];
    for (int lane = 0; lane < LANES; lane++)
        row->sum += sums[lane];

    /* Not even the largest noise, at 2^23 (1 - u) = 0.5, would lift the block's highest to the best. */
    if (exp_of(block_highest - row->highest) * row->bound < 0.499f)
        return;
    int32_t hits[LANES] = {0};
    for (int i = 0; i < BLOCK; i++)
        missing[i] = 8388607.5f - (float)fraction_of(row->keys, start + i);
    for (int i = 0; i < BLOCK; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            hits[lane] |= terms[i + lane] * row->bound >= missing[i + lane];
    int32_t any = 0;
    for (int lane = 0; lane < LANES; lane++)
        any |= hits[lane];
    if (any)
        for (int i = 0; i < BLOCK; i++)
            if (terms[i] * row->bound >= missing[i])
                consider(row, noised(scaled[i], row->keys, start + i), start + i);
}

static Row take_row(const float *logits, int64_t vocab, float temperature, Keys keys) {
    Row row = {.keys = keys, .highest = -FLT_MAX, .best = -INFINITY, .token = -1, .bound = INFINITY};
    for (int64_t start = 0; start < vocab; start += BLOCK) {
        float scaled[BLOCK];
        const int64_t count = vocab - start < BLOCK ? vocab - start : BLOCK;
        if (temperature == 1.0f)
            memcpy(scaled, logits + start, (size_t)count * sizeof *scaled);
        else
            for (int64_t i = 0; i < count; i++)
                scaled[i] = logits[start + i] / temperature;
        for (int64_t i = count; i < BLOCK; i++)
            scaled[i] = -INFINITY;
        take_block(&row, scaled, start);
    }
    return row;
}

/* Sample each row or, where `wanted` is not null, measure that token of each row against what would be sampled.

   logits    [rows, vocab], consecutive within a row, rows `stride` apart
   seeds, positions, wanted    [rows]; 0 <= wanted < vocab
   tokens    [rows]: the sampled tokens
   gaps      [rows]: how far the noised logit of `wanted` is below the sampled token's; not written without `wanted`
   logprobs  [rows]: log-softmax of logits / temperature at `wanted`, or at the sampled token
   states    [rows]: DECIDED, or CLOSE where nothing else that was written counts */
void sample_rows(const float *logits, int64_t rows, int64_t stride, int64_t vocab, float temperature,
                 const int64_t *seeds, const int64_t *positions, const int64_t *wanted, int64_t *tokens, float *gaps,
                 float *logprobs, uint8_t *states) {
    for (int64_t r = 0; r < rows; r++) {
        const float *row_logits = logits + r * stride;
        const Keys keys = keys_of(seeds[r], positions[r]);
        const Row row = take_row(row_logits, vocab, temperature, keys);
        states[r] = row.close || row.token < 0 || !isfinite(row.sum) || !isfinite(row.highest) ? CLOSE : DECIDED;
        if (states[r] == CLOSE)
            continue;
        tokens[r] = row.token;
        const int64_t token = wanted ? wanted[r] : row.token;
        const float scaled = row_logits[token] / temperature;
        logprobs[r] = (float)(scaled - (row.highest + log(row.sum)));
        if (wanted)
            gaps[r] = token == row.token ? 0.0f : fmaxf(0.0f, row.best - noised(scaled, keys, token));
    }
}
