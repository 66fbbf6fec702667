/* The published activation proofs: the largest entries of a chunk, and polynomials over GF(65497) through them.

The portable twins are in muster/toploc: largest.py for `select_largest`, field.py for the rest. Everything is integers,
so both give the same bytes. States are bfloat16, and below infinity those are in the order of their bits without the
sign. The loops over a chunk's points are written so that a compiler turns them into vector code by itself. */

#include <stdint.h>
#include <string.h>

enum {
    POINTS = 128,        /* of a chunk */
    BLOCK = 64,          /* entries of which only the largest is looked at first */
    PRIME = 65497,       /* 2^16 - 39 */
    LEAST_MODULUS = 32769
};

static inline uint16_t magnitude(uint16_t bits) { return bits & 0x7FFF; }

/* The POINTS-th largest of `count` magnitudes, 0 if there are fewer: counted by high byte, then by low byte. */
static uint16_t threshold_of(const uint16_t *magnitudes, int64_t count) {
    uint32_t bins[256] = {0}, above = 0;
    for (int64_t i = 0; i < count; i++) bins[magnitudes[i] >> 8]++;
    uint32_t high = 255;
    while (high > 0 && above + bins[high] < POINTS) above += bins[high--];

    memset(bins, 0, sizeof bins);
    for (int64_t i = 0; i < count; i++)
        if (magnitudes[i] >> 8 == high) bins[magnitudes[i] & 255]++;
    uint32_t low = 255;
    while (low > 0 && above + bins[low] < POINTS) above += bins[low--];
    return (uint16_t)(high << 8 | low);
}

/* The POINTS entries of largest magnitude, of equal ones those of lowest index, in the order of their indices. The
   largest of each block bound the threshold from below so well that few entries besides the wanted ones reach it.

   maxima: ceil(size / BLOCK) to write to; places, magnitudes: size each. */
static void select_in_chunk(const uint16_t *chunk, int64_t size, int32_t *indices, uint16_t *bits, uint16_t *maxima,
                            int32_t *places, uint16_t *magnitudes) {
    int64_t blocks = 0;
    for (int64_t start = 0; start < size; start += BLOCK) {
        uint16_t most = 0;
        if (start + BLOCK <= size) {
            for (int64_t i = start; i < start + BLOCK; i++)
                most = magnitude(chunk[i]) > most ? magnitude(chunk[i]) : most;
        } else {
            for (int64_t i = start; i < size; i++)
                most = magnitude(chunk[i]) > most ? magnitude(chunk[i]) : most;
        }
        maxima[blocks++] = most;
    }

    const uint16_t bound = blocks < POINTS ? 0 : threshold_of(maxima, blocks);
    int64_t candidates = 0;
    for (int64_t block = 0; block < blocks; block++) {
        if (maxima[block] < bound) continue;
        const int64_t start = block * BLOCK, end = start + BLOCK < size ? start + BLOCK : size;
        for (int64_t i = start; i < end; i++) {
            places[candidates] = (int32_t)i;
            magnitudes[candidates] = magnitude(chunk[i]);
            candidates += magnitudes[candidates] >= bound;
        }
    }

    const uint16_t threshold = threshold_of(magnitudes, candidates);
    int64_t equals = POINTS;
    for (int64_t i = 0; i < candidates; i++) equals -= magnitudes[i] > threshold;
    int64_t found = 0;
    for (int64_t i = 0; i < candidates && found < POINTS; i++) {
        if (magnitudes[i] < threshold || (magnitudes[i] == threshold && equals-- <= 0)) continue;
        indices[found] = places[i];
        bits[found++] = chunk[places[i]];
    }
    for (; found < POINTS; found++) { /* a chunk smaller than that counts as followed by zeros */
        indices[found] = (int32_t)found;
        bits[found] = 0;
    }
}

/* chunks: the address of each chunk's bfloat16 entries; indices, bits: [count, POINTS] to write to; the scratch arrays
   are large enough for the largest chunk. */
void select_largest(const uint16_t *const *chunks, const int64_t *sizes, int64_t count, int32_t *indices,
                    uint16_t *bits, uint16_t *maxima, int32_t *places, uint16_t *magnitudes) {
    for (int64_t i = 0; i < count; i++)
        select_in_chunk(chunks[i], sizes[i], indices + i * POINTS, bits + i * POINTS, maxima, places, magnitudes);
}

/* x modulo PRIME for any x: 2^16 is 39 more than PRIME, so the high half counts 39-fold. */
static inline uint32_t reduced(uint32_t x) {
    x = (x & 0xFFFF) + 39 * (x >> 16); /* below 2^22 */
    x = (x & 0xFFFF) + 39 * (x >> 16); /* below 2 PRIME */
    return x < PRIME ? x : x - PRIME;
}

static inline uint32_t minus(uint32_t a, uint32_t b) {
    const uint32_t difference = a - b;
    return difference + (PRIME & -(difference >> 31)); /* no branch, or the loops stay scalar */
}

/* The largest modulus up to PRIME under which all indices differ; 0 if none above 2^15 does. */
static uint32_t injective_modulus(const int32_t *indices) {
    for (uint32_t modulus = PRIME; modulus >= LEAST_MODULUS; modulus--) {
        uint8_t seen[PRIME / 8 + 1] = {0};
        int point = 0;
        for (; point < POINTS; point++) {
            const uint32_t x = (uint32_t)indices[point] % modulus;
            if (seen[x / 8] >> x % 8 & 1) break;
            seen[x / 8] |= (uint8_t)(1 << x % 8);
        }
        if (point == POINTS) return modulus;
    }
    return 0;
}

/* Coefficients, lowest first, of the polynomial through POINTS points with different x: Newton's divided differences,
   then in place from Newton's basis to powers. */
static void interpolate_points(const uint32_t *x, const uint16_t *y, const uint16_t *inverses, uint32_t *coefficients) {
    uint32_t differences[POINTS], factors[POINTS];
    for (int i = 0; i < POINTS; i++) differences[i] = y[i];
    coefficients[0] = differences[0];
    for (int order = 1; order < POINTS; order++) {
        for (int i = 0; i < POINTS - order; i++) factors[i] = inverses[minus(x[i + order], x[i])];
        for (int i = 0; i < POINTS - order; i++)
            differences[i] = reduced(minus(differences[i + 1], differences[i]) * factors[i]);
        coefficients[order] = differences[0];
    }
    for (int point = POINTS - 2; point >= 0; point--) {
        const uint32_t negative = minus(0, x[point]);
        for (int i = point; i < POINTS - 1; i++)
            coefficients[i] = reduced(coefficients[i] + negative * coefficients[i + 1]); /* below 2^32 */
    }
}

/* indices, values: [count, POINTS], values below PRIME; inverses: [PRIME] modulo PRIME; words: [count, 1 + POINTS] to
   write modulus and coefficients to, where a modulus of 0 says that there is none. */
void interpolate(const int32_t *indices, const uint16_t *values, int64_t count, const uint16_t *inverses,
                 uint16_t *words) {
    for (int64_t chunk = 0; chunk < count; chunk++, indices += POINTS, values += POINTS, words += 1 + POINTS) {
        uint32_t x[POINTS], coefficients[POINTS];
        const uint32_t modulus = injective_modulus(indices);
        words[0] = (uint16_t)modulus;
        if (modulus == 0) continue;
        for (int i = 0; i < POINTS; i++) x[i] = (uint32_t)indices[i] % modulus;
        interpolate_points(x, values, inverses, coefficients);
        for (int i = 0; i < POINTS; i++) words[1 + i] = (uint16_t)coefficients[i];
    }
}

/* words: [count, 1 + POINTS], moduli from 1 to PRIME, coefficients below PRIME; values: [count, POINTS] to write to. */
void evaluate(const uint16_t *words, const int32_t *indices, int64_t count, uint16_t *values) {
    for (int64_t chunk = 0; chunk < count; chunk++, indices += POINTS, values += POINTS, words += 1 + POINTS) {
        uint32_t x[POINTS], sums[POINTS] = {0};
        for (int i = 0; i < POINTS; i++) x[i] = (uint32_t)indices[i] % words[0];
        for (int power = POINTS; power > 0; power--)
            for (int i = 0; i < POINTS; i++) sums[i] = reduced(sums[i] * x[i] + words[power]);
        for (int i = 0; i < POINTS; i++) values[i] = (uint16_t)sums[i];
    }
}
