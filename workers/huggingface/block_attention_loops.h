/* The loops of block_attention.c, for one kind of processor; included once for each.
 *
 * TARGET says what the processor has and WIDTH the bytes of its vectors; NAMED(name) is the name of a function here. */

typedef float NAMED(Lanes) __attribute__((vector_size(WIDTH), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline)) TARGET

/* Has the processor fetch some keys or values: blocks lie apart, so it does not look ahead by itself. */
INLINE void NAMED(fetch)(const float *states, const int64_t number) {
    for (int64_t i = 0; i < number; i += CACHE_LINE / (int64_t)sizeof *states) __builtin_prefetch(states + i);
}

/* The scores of one token's heads at the places of one block. */
INLINE void NAMED(score)(
    const Call *call, const float *queries, const float *keys, const int64_t num_places, float *weights, const int64_t size) {
    for (int64_t group = 0; group < call->groups; group++) {
        const float *query = queries + group * call->query_head;
        for (int64_t place = 0; place < num_places; place++) {
            float sum = 0.0f;
            for (int64_t i = 0; i < size; i++) sum += query[i] * keys[place * size + i];
            weights[group * call->longest + place] = sum * call->scale;
        }
    }
}

/* Adds the weighted values of some places to one head's sums, which stay in registers meanwhile. */
INLINE void NAMED(add_weighted)(
    const float *weights, const float *values, const int64_t num_places, float *output, const int64_t size) {
    const int64_t lanes = sizeof(NAMED(Lanes)) / sizeof *values;
    int64_t i = 0;
    for (; i + lanes <= size; i += lanes) {
        NAMED(Lanes) *sums = (NAMED(Lanes) *)(output + i), sum = *sums;
        for (int64_t place = 0; place < num_places; place++)
            sum += weights[place] * *(const NAMED(Lanes) *)(values + place * size + i);
        *sums = sum;
    }
    for (int64_t place = 0; place < num_places; place++)
        for (int64_t rest = i; rest < size; rest++) output[rest] += weights[place] * values[place * size + rest];
}

/* The highest of some scores, lane by lane: otherwise compilers keep to the order of a maximum. */
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

/* Turns the scores of one token's heads into weights, and clears the places in which values are summed up. */
INLINE void NAMED(weigh)(const Call *call, const int64_t number, float *weights, float *output, const int64_t size) {
    for (int64_t group = 0; group < call->groups; group++) {
        float *weight = weights + group * call->longest, sum = 0.0f;
        const float highest = NAMED(highest_of)(weight, number);
        for (int64_t i = 0; i < number; i++) weight[i] = exponential(weight[i] - highest);
        for (int64_t i = 0; i < number; i++) sum += weight[i];
        for (int64_t i = 0; i < number; i++) weight[i] *= 1.0f / sum;
        for (int64_t i = 0; i < size; i++) output[group * size + i] = 0.0f;
    }
}

INLINE void NAMED(attend_tokens)(const Call *call, float *weights, const int64_t size) {
    const int64_t block_len = call->block_len, groups = call->groups;
    for (int64_t token = 0; token < call->tokens; token++) {
        const int64_t *table = call->tables + call->rows[token] * call->table_len;
        const int64_t stop = call->positions[token] + 1, start = stop > call->window ? stop - call->window : 0;
        for (int64_t head = 0; head < call->heads; head++) {
            const float *queries = call->queries + token * call->query_token + head * groups * call->query_head;
            float *output = call->output + (token * call->heads + head) * groups * size;
            for (int64_t over_values = 0; over_values < 2; over_values++) {
                for (int64_t place = start, end; place < stop; place = end) {
                    const int64_t block = place / block_len, offset = head * call->kv_head + place % block_len * size;
                    end = (block + 1) * block_len < stop ? (block + 1) * block_len : stop;
                    const float *states = (over_values ? call->values : call->keys) + table[block] * call->kv_block + offset;
                    if (end < stop)
                        NAMED(fetch)(states + (table[block + 1] - table[block]) * call->kv_block, (end - place) * size);
                    if (!over_values) NAMED(score)(call, queries, states, end - place, weights + place - start, size);
                    else
                        for (int64_t group = 0; group < groups; group++)
                            NAMED(add_weighted)(
                                weights + group * call->longest + place - start, states, end - place, output + group * size,
                                size);
                }
                if (!over_values) NAMED(weigh)(call, stop - start, weights, output, size);
            }
        }
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
