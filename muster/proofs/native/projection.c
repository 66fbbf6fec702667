/* The products of states with four vectors of signs, see muster/proofs/projection.py.

Reading the states once is most of the work: every value is taken into a register and added four times, multiplied by 1
or -1, for two tokens at a time so that the signs are read half as often. Sums are float32 in LANES parts that are added
up at the end; they differ from the portable twin's in the order of the additions only. */

#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast") /* a product with 1 or -1 is exact, so this changes no result */
#endif

enum { PROJECTIONS = 4, LANES = 8, BLOCK = 2 * LANES };

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));

/* Vectors pass by address: by value, their place depends on what the processor has. */
#define INLINE static inline __attribute__((always_inline))

/* BLOCK values as float32. bfloat16 is the upper half of one: read as words of 32 bits, entries of even index are their
   lower halves, and those of odd index already stand right. So `first` are the even ones then, and the first half else. */
INLINE void read_block(const char *entries, int wide, Bits *first, Bits *second) {
    memcpy(first, entries, sizeof *first);
    if (wide) {
        memcpy(second, entries + sizeof *first, sizeof *second);
    } else {
        *second = *first & 0xFFFF0000u;
        *first = *first << 16;
    }
}

/* LANES signs from the bits of a word at `places`: the bits of 1 or -1 as float32. */
INLINE void unpack_lanes(uint32_t word, const Bits *places, uint32_t *signs) {
    const Bits lanes = (((Bits){0} + word) >> *places) << 31 | 0x3F800000u;
    memcpy(signs, &lanes, sizeof lanes);
}

/* The signs of `hidden` entries from a bit on, in the order of `read_block`. */
INLINE void unpack_signs(const uint32_t *words, int64_t words_each, int64_t bit, int64_t hidden, int wide,
                         uint32_t *signs) {
    const Bits in_order = {0, 1, 2, 3, 4, 5, 6, 7};
    const Bits first = wide ? in_order : 2 * in_order, second = wide ? in_order + LANES : 2 * in_order + 1;
    for (int64_t entry = 0; entry < hidden; entry += BLOCK, bit += BLOCK, signs += BLOCK) {
        const int64_t word = bit / 32;
        const uint64_t next = word + 1 < words_each ? words[word + 1] : 0;
        const uint32_t block = (uint32_t)((next << 32 | words[word]) >> bit % 32);
        unpack_lanes(block, &first, signs);
        unpack_lanes(block, &second, signs + LANES);
    }
}

/* One projection of one token's block. */
INLINE void add_block(Floats *sum, const Bits *first, const Bits *second, const uint32_t *signs) {
    Floats of_first, of_second;
    memcpy(&of_first, signs, sizeof of_first);
    memcpy(&of_second, signs + LANES, sizeof of_second);
    *sum += (Floats)*first * of_first;
    *sum += (Floats)*second * of_second;
}

/* Blocks of two tokens, which may be the same one; what is `ahead` bytes from each will be read next, and the processor
   would not look beyond a page for it. sums: [2, PROJECTIONS] to add to. */
INLINE void project_pair(const char *one, const char *two, int64_t ahead, int64_t blocks, int wide,
                         const uint32_t *signs, int64_t stride, float *sums) {
    Floats a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, b0 = {0}, b1 = {0}, b2 = {0}, b3 = {0};
    for (int64_t block = 0; block < blocks; block++, signs += BLOCK) {
        const int64_t offset = block * BLOCK * (wide ? 4 : 2);
        Bits first, second;
        __builtin_prefetch(one + offset + ahead);
        __builtin_prefetch(two + offset + ahead);
        read_block(one + offset, wide, &first, &second);
        add_block(&a0, &first, &second, signs);
        add_block(&a1, &first, &second, signs + stride);
        add_block(&a2, &first, &second, signs + 2 * stride);
        add_block(&a3, &first, &second, signs + 3 * stride);
        read_block(two + offset, wide, &first, &second);
        add_block(&b0, &first, &second, signs);
        add_block(&b1, &first, &second, signs + stride);
        add_block(&b2, &first, &second, signs + 2 * stride);
        add_block(&b3, &first, &second, signs + 3 * stride);
    }
    const Floats parts[2 * PROJECTIONS] = {a0, a1, a2, a3, b0, b1, b2, b3};
    for (int i = 0; i < 2 * PROJECTIONS; i++)
        for (int lane = 0; lane < LANES; lane++) sums[i] += parts[i][lane];
}

INLINE void project_completion(const char *rows, int64_t tokens, int64_t hidden, int wide, const uint32_t *words,
                               int64_t words_each, uint32_t *signs, int64_t stride, float *sums) {
    for (int64_t k = 0; k < PROJECTIONS; k++)
        unpack_signs(words, words_each, k * hidden, hidden, wide, signs + k * stride);

    const int64_t size = wide ? 4 : 2, blocks = hidden / BLOCK, rest = hidden % BLOCK;
    for (int64_t token = 0; token < tokens; token += 2, sums += 2 * PROJECTIONS) {
        const int both = token + 1 < tokens;
        const char *one = rows + token * hidden * size, *two = both ? one + hidden * size : one;
        float found[2 * PROJECTIONS] = {0};
        project_pair(one, two, token + 3 < tokens ? 2 * hidden * size : 0, blocks, wide, signs, stride, found);
        if (rest) {
            char ends[2][4 * BLOCK] = {{0}};
            memcpy(ends[0], one + blocks * BLOCK * size, (size_t)(rest * size));
            memcpy(ends[1], two + blocks * BLOCK * size, (size_t)(rest * size));
            project_pair(ends[0], ends[1], 0, 1, wide, signs + blocks * BLOCK, stride, found);
        }
        memcpy(sums, found, (both ? 2 : 1) * PROJECTIONS * sizeof *sums);
    }
}

/* rows: the address of each completion's states, [tokens, hidden] float32 (wide) or bfloat16; words: [count,
   words_each], 32 signs a word; signs: [PROJECTIONS, stride] of scratch, stride the multiple of BLOCK from `hidden` on;
   sums: [all tokens, PROJECTIONS] to write to. */
void project(const char *const *rows, const int64_t *tokens, int64_t count, int64_t hidden, int32_t wide,
             const uint32_t *words, int64_t words_each, uint32_t *signs, int64_t stride, float *sums) {
    for (int64_t i = 0; i < count; i++, words += words_each) {
        if (wide)
            project_completion(rows[i], tokens[i], hidden, 1, words, words_each, signs, stride, sums);
        else
            project_completion(rows[i], tokens[i], hidden, 0, words, words_each, signs, stride, sums);
        sums += tokens[i] * PROJECTIONS;
    }
}
