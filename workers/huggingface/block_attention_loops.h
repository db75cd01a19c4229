/* The loops of block_attention.c, for one type of keys and values and one processor; included once for each pair.
 *
 * TARGET says what the processor has and WIDTH the bytes of its vectors, NAMED(name) is the name of a function here,
 * ELEMENT the type of keys and values, and WIDEN(from, wide, size) the address of `size` of them as floats: their own
 * place, or `wide`. */

typedef float NAMED(Lanes) __attribute__((vector_size(WIDTH), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline)) TARGET

/* Has the processor bring a place's keys or values: blocks lie apart, where it does not look ahead by itself. */
INLINE void NAMED(fetch)(const ELEMENT *place, const int64_t size) {
    for (int64_t i = 0; i < size; i += CACHE_LINE / (int64_t)sizeof *place) __builtin_prefetch(place + i);
}

/* The scores of one token's heads at the places from `place` to `stop`. */
INLINE void NAMED(score)(
    const Call *call, const int64_t token, const int64_t head, int64_t place, const int64_t stop, float *weights,
    const int64_t size) {
    const int64_t block_len = call->block_len;
    const int64_t *table = call->tables + call->rows[token] * call->table_len;
    const float *queries = call->queries + token * call->query_token + head * call->groups * call->query_head;
    float wide[STRETCH * WIDEST];
    while (place < stop) {
        const int64_t block = place / block_len, first = block * block_len;
        const int64_t end = first + block_len < stop ? first + block_len : stop;
        const ELEMENT *keys = (const ELEMENT *)call->keys + table[block] * call->kv_block + head * call->kv_head;
        const ELEMENT *next = end < stop ? keys + (table[block + 1] - table[block]) * call->kv_block : keys;
        for (int64_t last; place < end; place = last) {
            last = place + STRETCH < end ? place + STRETCH : end;
            const float *key = WIDEN(keys + (place - first) * size, wide, (last - place) * size);
            NAMED(fetch)(next + (place - first) * size, (last - place) * size);
            for (int64_t group = 0; group < call->groups; group++) {
                const float *query = queries + group * call->query_head;
                float *weight = weights + group * call->longest + place;
                for (int64_t number = 0; number < last - place; number++) {
                    float sum = 0.0f;
                    for (int64_t i = 0; i < size; i++) sum += query[i] * key[number * size + i];
                    weight[number] = sum * call->scale;
                }
            }
        }
    }
}

/* Adds the weighted values of some places to one head's sums, which stay in registers meanwhile. */
INLINE void NAMED(add_weighted)(
    const float *weights, const float *values, const int64_t num_places, float *output, const int64_t size) {
    const int64_t lanes = sizeof(NAMED(Lanes)) / sizeof *values;
    int64_t i = 0;
    for (; i + 4 * lanes <= size; i += 4 * lanes) {
        NAMED(Lanes) *sums = (NAMED(Lanes) *)(output + i), first = sums[0], second = sums[1], third = sums[2], fourth = sums[3];
        for (int64_t place = 0; place < num_places; place++) {
            const NAMED(Lanes) *value = (const NAMED(Lanes) *)(values + place * size + i);
            first += weights[place] * value[0], second += weights[place] * value[1];
            third += weights[place] * value[2], fourth += weights[place] * value[3];
        }
        sums[0] = first, sums[1] = second, sums[2] = third, sums[3] = fourth;
    }
    for (; i + lanes <= size; i += lanes) {
        NAMED(Lanes) *sums = (NAMED(Lanes) *)(output + i), sum = *sums;
        for (int64_t place = 0; place < num_places; place++)
            sum += weights[place] * *(const NAMED(Lanes) *)(values + place * size + i);
        *sums = sum;
    }
    for (int64_t place = 0; place < num_places; place++)
        for (int64_t rest = i; rest < size; rest++) output[rest] += weights[place] * values[place * size + rest];
}

/* Adds the weighted values of one token's heads at the places from `place` to `stop`. */
INLINE void NAMED(add_values)(
    const Call *call, const int64_t token, const int64_t head, int64_t place, const int64_t stop, const float *weights,
    const int64_t size) {
    const int64_t groups = call->groups, block_len = call->block_len;
    const int64_t *table = call->tables + call->rows[token] * call->table_len;
    float *output = call->output + (token * call->heads + head) * groups * size;
    float wide[STRETCH * WIDEST];
    while (place < stop) {
        const int64_t block = place / block_len, first = block * block_len;
        const int64_t end = first + block_len < stop ? first + block_len : stop;
        const ELEMENT *values = (const ELEMENT *)call->values + table[block] * call->kv_block + head * call->kv_head;
        const ELEMENT *next = end < stop ? values + (table[block + 1] - table[block]) * call->kv_block : values;
        for (int64_t last; place < end; place = last) {
            last = place + STRETCH < end ? place + STRETCH : end;
            const float *value = WIDEN(values + (place - first) * size, wide, (last - place) * size);
            NAMED(fetch)(next + (place - first) * size, (last - place) * size);
            for (int64_t group = 0; group < groups; group++) {
                const float *weight = weights + group * call->longest + place;
                NAMED(add_weighted)(weight, value, last - place, output + group * size, size);
            }
        }
    }
}

/* The highest of some scores, by the lane: compilers keep to the order of a maximum otherwise. */
INLINE float NAMED(highest_of)(const float *scores, const int64_t number) {
    float lanes[16], highest = -FLT_MAX;
    for (int64_t lane = 0; lane < 16; lane++) lanes[lane] = -FLT_MAX;
    int64_t i = 0;
    for (; i + 16 <= number; i += 16)
        for (int64_t lane = 0; lane < 16; lane++)
            lanes[lane] = scores[i + lane] > lanes[lane] ? scores[i + lane] : lanes[lane];
    for (; i < number; i++) highest = scores[i] > highest ? scores[i] : highest;
    for (int64_t lane = 0; lane < 16; lane++) highest = lanes[lane] > highest ? lanes[lane] : highest;
    return highest;
}

/* Turns the scores of one token's heads into weights, and clears what these will be summed up in. */
INLINE void NAMED(weigh)(
    const Call *call, const int64_t token, const int64_t head, const int64_t start, const int64_t stop, float *weights,
    const int64_t size) {
    float *output = call->output + (token * call->heads + head) * call->groups * size;
    for (int64_t group = 0; group < call->groups; group++) {
        float *weight = weights + group * call->longest;
        const float highest = NAMED(highest_of)(weight + start, stop - start);
        float sum = 0.0f;
        for (int64_t place = start; place < stop; place++) weight[place] = exponential(weight[place] - highest);
        for (int64_t place = start; place < stop; place++) sum += weight[place];
        for (int64_t place = start; place < stop; place++) weight[place] *= 1.0f / sum;
        for (int64_t i = 0; i < size; i++) output[group * size + i] = 0.0f;
    }
}

/* A stretch of tokens that share their first places: each block of these is read once for all of them, while it is in
 * the cache. Every sum has the order that it has for a token alone, so that nothing of the result depends on who shares. */
INLINE void NAMED(attend_stretch)(
    const Call *call, const int64_t first, const int64_t last, const int64_t shared, float *weights, const int64_t size) {
    const int64_t own = call->groups * call->longest, block_len = call->block_len;
    for (int64_t head = 0; head < call->heads; head++) {
        for (int64_t place = 0; place < shared; place += block_len)
            for (int64_t token = first; token < last; token++)
                NAMED(score)(call, token, head, place, place + block_len, weights + (token - first) * own, size);
        for (int64_t token = first; token < last; token++) {
            const int64_t stop = call->positions[token] + 1, start = stop > call->window ? stop - call->window : 0;
            float *weight = weights + (token - first) * own;
            NAMED(score)(call, token, head, start > shared ? start : shared, stop, weight, size);
            NAMED(weigh)(call, token, head, start, stop, weight, size);
        }
        for (int64_t place = 0; place < shared; place += block_len)
            for (int64_t token = first; token < last; token++)
                NAMED(add_values)(call, token, head, place, place + block_len, weights + (token - first) * own, size);
        for (int64_t token = first; token < last; token++) {
            const int64_t stop = call->positions[token] + 1, start = stop > call->window ? stop - call->window : 0;
            NAMED(add_values)(call, token, head, start > shared ? start : shared, stop, weights + (token - first) * own, size);
        }
    }
}

INLINE void NAMED(attend_tokens)(const Call *call, float *weights, const int64_t size) {
    for (int64_t first = 0; first < call->tokens;) {
        int64_t last = first + 1, shared = call->shared[first];
        while (last < call->tokens && last - first < MOST_TOGETHER && shared && call->shared[last - 1] >= shared) last++;
        if (last == first + 1) shared = 0;
        NAMED(attend_stretch)(call, first, last, shared, weights, size);
        first = last;
    }
}

static TARGET void NAMED(attend)(const Call *call, float *weights, const int64_t size) {
    switch (size) { /* a size that the compiler knows is computed in registers */
        case 16: NAMED(attend_tokens)(call, weights, 16); break;
        case 32: NAMED(attend_tokens)(call, weights, 32); break;
        case 64: NAMED(attend_tokens)(call, weights, 64); break;
        case 128: NAMED(attend_tokens)(call, weights, 128); break;
        default: NAMED(attend_tokens)(call, weights, size);
    }
}

#undef INLINE
#undef TARGET
#undef WIDTH
#undef NAMED
#undef ELEMENT
#undef WIDEN
