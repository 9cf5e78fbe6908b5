/* CPU kernels for bfloat16 on AVX512-BF16: paged attention, rotary embedding, RMS norm, gated activation.
 *
 * Compiled once at engine start by backends/hf/native.py and called through ctypes; without a compiler or these
 * instructions the engine runs the same computation in torch.
 *
 * Pages hold keys and values as the dot-product instruction wants them (it multiplies pairs of bfloat16):
 *   keys   [block][kv_head][block_size / 16][head_dim / 2][16 tokens][2]
 *   values [block][kv_head][block_size / 2][head_dim][2 tokens]
 * so that one register holds 16 tokens' pair of dimensions, or 16 dimensions of a pair of tokens, and no sum ever runs
 * across a register. A group of 16 tokens is zeroed when its first slot is written: what lies beyond a sequence's end
 * is always finite.
 */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;

enum { TILE = 6, TILES = 8, ROWS = TILE * TILES, KEYS = 128, MAX_DIM = 256 };

static inline float to_float(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline bf16 to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return (bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline __m512 load_bf16(const bf16 *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

static inline void store_bf16(bf16 *p, __m512 x) {
    __m256bh packed = _mm512_cvtneps_pbh(x);
    memcpy(p, &packed, 32);
}

/* e^x for x <= 0 to about 2 ulp; 0 below -87, minus infinity included. */
static inline __m512 exp_nonpositive(__m512 x) {
    __mmask16 alive = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_GT_OQ);
    __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
    __m512 n = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(y, n);
    __m512 p = _mm512_set1_ps(1.33335581e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.61812911e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.55041087e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40226507e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93147181e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(alive, p, n);
}

/* What one task works on: some query rows of one sequence that share a key head. Row r is token r / group, head r % group. */
typedef struct {
    const bf16 *keys, *values;  /* pages of this key head's layer */
    const int32_t *table;       /* the sequence's blocks */
    long head, kv_heads, dim, block_size;
    bf16 query[ROWS * MAX_DIM];
    float out[ROWS * MAX_DIM];
    float peak[ROWS], total[ROWS];
    int position[ROWS];         /* of the row's token in its sequence */
    int rows, window;
    float scale;
} Task;

static inline const bf16 *key_group(const Task *t, long key) {
    long block = t->table[key / t->block_size];
    return t->keys + ((block * t->kv_heads + t->head) * t->block_size + key % t->block_size) * t->dim;
}

static inline const bf16 *value_group(const Task *t, long key) {
    long block = t->table[key / t->block_size];
    return t->values + ((block * t->kv_heads + t->head) * t->block_size + key % t->block_size) * t->dim;
}

/* scores[r][0..16w) = query row r . 16 w keys, for `n` rows and `w` groups of keys: n * w sums run side by side. */
static inline __attribute__((always_inline)) void score_groups(const Task *t, int row, long key, float *scores, const int n, const int w) {
    const bf16 *query = t->query + row * t->dim, *keys[4];
    __m512 acc[TILE][4];
    for (int j = 0; j < w; j++) keys[j] = key_group(t, key + 16 * j);
    for (int r = 0; r < n; r++)
        for (int j = 0; j < w; j++) acc[r][j] = _mm512_setzero_ps();
    for (long d = 0; d < t->dim; d += 2) {
        __m512bh k[4];
        for (int j = 0; j < w; j++) k[j] = (__m512bh)_mm512_loadu_si512(keys[j] + d * 16);
        for (int r = 0; r < n; r++) {
            int32_t pair;
            memcpy(&pair, query + r * t->dim + d, 4);
            for (int j = 0; j < w; j++) acc[r][j] = _mm512_dpbf16_ps(acc[r][j], k[j], (__m512bh)_mm512_set1_epi32(pair));
        }
    }
    for (int r = 0; r < n; r++)
        for (int j = 0; j < w; j++)
            _mm512_storeu_ps(scores + r * KEYS + 16 * j, _mm512_mul_ps(acc[r][j], _mm512_set1_ps(t->scale)));
}

/* out[r][d..d+16w) = out * fix[r] + sum over key pairs of weights[r] . values, for `n` rows and `w` registers. */
static inline __attribute__((always_inline)) void mix_values(
    const Task *t, long key, long count, const int32_t *weights, float *out, const float *fix, long d, const int n, const int w) {
    __m512 acc[TILE][4];
    for (int r = 0; r < n; r++)
        for (int j = 0; j < w; j++)
            acc[r][j] = _mm512_mul_ps(_mm512_loadu_ps(out + r * t->dim + d + 16 * j), _mm512_set1_ps(fix[r]));
    for (long g = 0; g < count; g += 16) {
        const bf16 *values = value_group(t, key + g) + d * 2;
        for (long p = 0; p < 8; p++, values += t->dim * 2) {
            __m512i v[4];
            for (int j = 0; j < w; j++) v[j] = _mm512_loadu_si512(values + 32 * j);
            for (int r = 0; r < n; r++) {
                __m512bh pair = (__m512bh)_mm512_set1_epi32(weights[r * (KEYS / 2) + g / 2 + p]);
                for (int j = 0; j < w; j++) acc[r][j] = _mm512_dpbf16_ps(acc[r][j], pair, (__m512bh)v[j]);
            }
        }
    }
    for (int r = 0; r < n; r++)
        for (int j = 0; j < w; j++) _mm512_storeu_ps(out + r * t->dim + d + 16 * j, acc[r][j]);
}

/* Softmax of one row's scores against the peak so far: weights as bfloat16 pairs, peak and total updated; returns the
 * factor that earlier sums must be multiplied by. */
static inline float weigh(float *scores, long count, int32_t *weights, float *peak, float *total) {
    __m512 top = _mm512_set1_ps(*peak);
    for (long g = 0; g < count; g += 16) top = _mm512_max_ps(top, _mm512_loadu_ps(scores + g));
    float high = _mm512_reduce_max_ps(top);
    float base = high == -INFINITY ? 0.0f : high;
    __m512 sum = _mm512_setzero_ps();
    for (long g = 0; g < count; g += 16) {
        __m512 p = exp_nonpositive(_mm512_sub_ps(_mm512_loadu_ps(scores + g), _mm512_set1_ps(base)));
        sum = _mm512_add_ps(sum, p);
        store_bf16((bf16 *)weights + g, p);
    }
    float fix = *peak == -INFINITY ? 0.0f : expf(*peak - base);
    *total = *total * fix + _mm512_reduce_add_ps(sum);
    *peak = high;
    return fix;
}

/* Hide keys after the row's own position, and those its window has left behind. */
static inline void mask(float *scores, long key, long count, int position, int window) {
    __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (long g = 0; g < count; g += 16) {
        __m512i k = _mm512_add_epi32(lane, _mm512_set1_epi32((int)(key + g)));
        __mmask16 hidden = _mm512_cmpgt_epi32_mask(k, _mm512_set1_epi32(position));
        if (window > 0) hidden |= _mm512_cmple_epi32_mask(k, _mm512_set1_epi32(position - window));
        _mm512_storeu_ps(scores + g, _mm512_mask_mov_ps(_mm512_loadu_ps(scores + g), hidden, _mm512_set1_ps(-INFINITY)));
    }
}

/* One tile of `n` rows against `count` keys from `key` on (a multiple of 16). */
static inline __attribute__((always_inline)) void tile(Task *t, int row, long key, long count, const int n) {
    float scores[TILE * KEYS];
    int32_t weights[TILE * KEYS / 2];
    float fix[TILE];
    const int wide = n <= 3 ? 4 : 2;
    long g = 0;
    for (; g + 16 * wide <= count; g += 16 * wide) score_groups(t, row, key + g, scores + g, n, wide);
    for (; g < count; g += 16) score_groups(t, row, key + g, scores + g, n, 1);
    for (int r = 0; r < n; r++) {
        int position = t->position[row + r];
        if (key + count - 1 > position || (t->window > 0 && key <= position - t->window))
            mask(scores + r * KEYS, key, count, position, t->window);
        fix[r] = weigh(scores + r * KEYS, count, weights + r * (KEYS / 2), t->peak + row + r, t->total + row + r);
    }
    float *out = t->out + row * t->dim;
    long d = 0;
    for (; d + 64 <= t->dim; d += 64) mix_values(t, key, count, weights, out, fix, d, n, 4);
    for (; d < t->dim; d += 16) mix_values(t, key, count, weights, out, fix, d, n, 1);
}

static void tile_of(Task *t, int row, long key, long count, int n) {
    switch (n) {
        case 1: tile(t, row, key, count, 1); break;
        case 2: tile(t, row, key, count, 2); break;
        case 3: tile(t, row, key, count, 3); break;
        case 4: tile(t, row, key, count, 4); break;
        case 5: tile(t, row, key, count, 5); break;
        default: tile(t, row, key, count, 6); break;
    }
}

static void run_task(Task *t) {
    int last = t->position[t->rows - 1], first = t->position[0];
    long begin = t->window > 0 && first + 1 > t->window ? (first + 1 - t->window) / 16 * 16 : 0;
    long end = (last + 16) / 16 * 16;
    for (int r = 0; r < t->rows; r++) {
        t->peak[r] = -INFINITY;
        t->total[r] = 0.0f;
    }
    memset(t->out, 0, sizeof(float) * t->rows * t->dim);
    for (long key = begin; key < end; key += KEYS) {
        long count = end - key < KEYS ? end - key : KEYS;
        for (int row = 0; row < t->rows; row += TILE) {
            int n = t->rows - row < TILE ? t->rows - row : TILE;
            if (key > t->position[row + n - 1]) continue;
            tile_of(t, row, key, count, n);
        }
    }
}

/* Attention of all rows of a step.
 * rows: [num_rows][4] = first token of the step, position of that token, tokens, offset into tables.
 * query: [tokens][heads][dim] with the given strides; out: the same, contiguous. window 0: all keys. */
void attend(const bf16 *query, long token_stride, long head_stride, bf16 *out, const bf16 *keys, const bf16 *values,
            const int32_t *rows, long num_rows, const int32_t *tables, long heads, long kv_heads, long dim,
            long block_size, float scale, long window, long threads) {
    long group = heads / kv_heads;
    long starts[num_rows + 1];
    starts[0] = 0;
    for (long i = 0; i < num_rows; i++) starts[i + 1] = starts[i] + (rows[4 * i + 2] * group + ROWS - 1) / ROWS * kv_heads;
#pragma omp parallel num_threads(threads)
    {
        Task t;
#pragma omp for schedule(dynamic, 1)
        for (long job = 0; job < starts[num_rows]; job++) {
            long i = 0;
            for (long high = num_rows; high - i > 1;) {
                long middle = (i + high) / 2;
                if (starts[middle] <= job) i = middle;
                else high = middle;
            }
            /* The last rows of a chunk see the most keys: start with them, so that the threads end together. */
            const int32_t *row = rows + 4 * i;
            long spans = (starts[i + 1] - starts[i]) / kv_heads, local = job - starts[i];
            long first = (spans - 1 - local / kv_heads) * ROWS, all = row[2] * group;
            t.head = local % kv_heads;
            t.rows = (int)(all - first < ROWS ? all - first : ROWS);
            t.keys = keys, t.values = values, t.table = tables + row[3];
            t.kv_heads = kv_heads, t.dim = dim, t.block_size = block_size;
            t.scale = scale, t.window = (int)window;
            for (int r = 0; r < t.rows; r++) {
                long token = (first + r) / group, head = t.head * group + (first + r) % group;
                t.position[r] = row[1] + (int)token;
                memcpy(t.query + r * dim, query + (row[0] + token) * token_stride + head * head_stride, dim * sizeof(bf16));
            }
            run_task(&t);
            for (int r = 0; r < t.rows; r++) {
                long token = row[0] + (first + r) / group, head = t.head * group + (first + r) % group;
                bf16 *to = out + (token * heads + head) * dim;
                __m512 share = _mm512_set1_ps(1.0f / t.total[r]);
                for (long d = 0; d < dim; d += 16) store_bf16(to + d, _mm512_mul_ps(_mm512_loadu_ps(t.out + r * dim + d), share));
            }
        }
    }
}

static inline void put(bf16 *keys, bf16 *values, const bf16 *key, const bf16 *value, long slot, long head, long kv_heads,
                       long dim, long block_size) {
    long block = slot / block_size, offset = slot % block_size, lane = offset % 16;
    bf16 *group_k = keys + ((block * kv_heads + head) * block_size + offset - lane) * dim;
    bf16 *group_v = values + ((block * kv_heads + head) * block_size + offset - lane) * dim;
    if (lane == 0) {
        memset(group_k, 0, 16 * dim * sizeof(bf16));
        memset(group_v, 0, 16 * dim * sizeof(bf16));
    }
    for (long d = 0; d < dim; d += 2) memcpy(group_k + d * 16 + lane * 2, key + d, 4);
    bf16 *pair = group_v + lane / 2 * 2 * dim + lane % 2;
    for (long d = 0; d < dim; d++) pair[2 * d] = value[d];
}

/* Write keys and values [tokens][kv_heads][dim], with the given strides, to their slots. */
void store(const bf16 *key, long key_token, long key_head, const bf16 *value, long value_token, long value_head,
           bf16 *keys, bf16 *values, const int64_t *slots, long tokens, long kv_heads, long dim, long block_size) {
    for (long t = 0; t < tokens; t++)
        for (long h = 0; h < kv_heads; h++)
            put(keys, values, key + t * key_token + h * key_head, value + t * value_token + h * value_head, slots[t], h,
                kv_heads, dim, block_size);
}

static inline void rotate(const bf16 *x, const bf16 *cos, const bf16 *sin, bf16 *out, long dim) {
    long half = dim / 2;
    for (long d = 0; d < half; d += 16) {
        __m512 low = load_bf16(x + d), high = load_bf16(x + half + d);
        store_bf16(out + d, _mm512_fmsub_ps(low, load_bf16(cos + d), _mm512_mul_ps(high, load_bf16(sin + d))));
        store_bf16(out + half + d,
                   _mm512_fmadd_ps(high, load_bf16(cos + half + d), _mm512_mul_ps(low, load_bf16(sin + half + d))));
    }
}

/* Rotary embedding of a fused projection [tokens][heads + 2 kv_heads][dim]: queries in place, keys and values to pages. */
void rotate_and_store(bf16 *fused, const bf16 *cos, const bf16 *sin, bf16 *keys, bf16 *values, const int64_t *slots,
                      long tokens, long heads, long kv_heads, long dim, long block_size, long threads) {
    long width = (heads + 2 * kv_heads) * dim;
#pragma omp parallel for num_threads(threads) if (tokens >= 8)
    for (long h = 0; h < kv_heads; h++) {
        bf16 key[MAX_DIM];
        long group = heads / kv_heads;
        for (long t = 0; t < tokens; t++) {
            bf16 *row = fused + t * width;
            for (long g = h * group; g < (h + 1) * group; g++) rotate(row + g * dim, cos + t * dim, sin + t * dim, row + g * dim, dim);
            rotate(row + (heads + h) * dim, cos + t * dim, sin + t * dim, key, dim);
            put(keys, values, key, row + (heads + kv_heads + h) * dim, slots[t], h, kv_heads, dim, block_size);
        }
    }
}

/* out = weight * (x / rms(x)), rounded before the weight as the models' own code does. */
void rms_norm(const bf16 *x, const bf16 *weight, bf16 *out, long rows, long dim, float eps, long threads) {
#pragma omp parallel for num_threads(threads) if (rows >= 32)
    for (long r = 0; r < rows; r++) {
        const bf16 *from = x + r * dim;
        bf16 *to = out + r * dim;
        __m512 sum = _mm512_setzero_ps();
        for (long d = 0; d < dim; d += 16) {
            __m512 v = load_bf16(from + d);
            sum = _mm512_fmadd_ps(v, v, sum);
        }
        __m512 factor = _mm512_set1_ps(1.0f / sqrtf(_mm512_reduce_add_ps(sum) / (float)dim + eps));
        for (long d = 0; d < dim; d += 16) {
            store_bf16(to + d, _mm512_mul_ps(load_bf16(from + d), factor));
            store_bf16(to + d, _mm512_mul_ps(load_bf16(to + d), load_bf16(weight + d)));
        }
    }
}

/* total = x + residual; out = rms_norm(total). */
void add_rms_norm(const bf16 *x, const bf16 *residual, bf16 *total, const bf16 *weight, bf16 *out, long rows, long dim,
                  float eps, long threads) {
#pragma omp parallel for num_threads(threads) if (rows >= 32)
    for (long r = 0; r < rows; r++) {
        for (long d = r * dim; d < (r + 1) * dim; d += 16)
            store_bf16(total + d, _mm512_add_ps(load_bf16(x + d), load_bf16(residual + d)));
        rms_norm(total + r * dim, weight, out + r * dim, 1, dim, eps, 1);
    }
}

/* out[rows][dim] = silu(gate) * up, from [rows][2 dim] with gate first. */
void silu_mul(const bf16 *gate_up, bf16 *out, long rows, long dim, long threads) {
#pragma omp parallel for num_threads(threads) if (rows >= 8)
    for (long r = 0; r < rows; r++) {
        const bf16 *gate = gate_up + r * 2 * dim, *up = gate + dim;
        for (long d = 0; d < dim; d += 16) {
            __m512 g = load_bf16(gate + d), magnitude = _mm512_abs_ps(g);
            __m512 e = exp_nonpositive(_mm512_sub_ps(_mm512_setzero_ps(), magnitude));
            __m512 one = _mm512_set1_ps(1.0f);
            __mmask16 negative = _mm512_cmp_ps_mask(g, _mm512_setzero_ps(), _CMP_LT_OQ);
            __m512 sigmoid = _mm512_div_ps(_mm512_mask_mov_ps(one, negative, e), _mm512_add_ps(one, e));
            store_bf16(out + r * dim + d, _mm512_mul_ps(_mm512_mul_ps(g, sigmoid), load_bf16(up + d)));
        }
    }
}
