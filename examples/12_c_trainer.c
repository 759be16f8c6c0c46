/* 12_c_trainer.c: a small GPT in plain C, trained on several ranks. It learns a few random sequences by heart.
 *
 * Each rank takes its part of the batch. One call makes the training parallel: hvd_allreduce on all gradients, which
 * lie in one array, in memory that the ranks share. With --engine each layer's gradients are submitted by name as soon
 * as they are computed, and travel while the layers below are still at work.
 *
 * usage: 12_c_trainer [--ranks N] [--engine]      N processes of this host; without, those that a launcher has started
 */
#include <hvd/c/hvd.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The batch is that of all ranks together; a row is one place of one sequence. */
enum { vocabulary = 64, length = 16, batch = 8, width = 32, heads = 2, layers = 2, steps = 20 };
enum { head_width = width / heads, hidden = 4 * width, max_rows = batch * length };

/* ---- the model: structs of nothing but floats, so each is one array, without gaps -------------------------------- */

typedef struct {
  float gain[width], shift[width];
} norm;

typedef struct {
  norm before_attention;
  float qkv[3 * width * width], qkv_bias[3 * width]; /* query, key and value */
  float mix[width * width], mix_bias[width];
  norm before_mlp;
  float up[hidden * width], up_bias[hidden];
  float down[width * hidden], down_bias[width];
} block;

typedef struct {
  float token[vocabulary * width]; /* also the output head */
  float position[length * width];
  block blocks[layers];
  norm last;
} model;

enum { parameters = sizeof(model) / sizeof(float) };

/* What forward leaves for backward. Every array has one line for each row. */
typedef struct {
  float in[max_rows * width], normed_in[max_rows * width];
  float qkv[max_rows * 3 * width], attention[max_rows * heads * length], mixed[max_rows * width];
  float middle[max_rows * width], normed_middle[max_rows * width];
  float up[max_rows * hidden], active[max_rows * hidden];
} block_values;

typedef struct {
  block_values blocks[layers];
  float out[max_rows * width], normed_out[max_rows * width];
  float probability[max_rows * vocabulary];
} values;

typedef struct {
  hvd_comm comm;
  hvd_engine engine; /* 0: one allreduce after backward */
  hvd_handle in_flight[layers + 2];
  int n_in_flight, rows; /* rows of this rank's part of the batch */
  int input[max_rows], target[max_rows];
  model* gradients; /* in shared memory */
  model weights, mean, variance;
  values v;
} trainer;

static int failed(void) {
  fprintf(stderr, "12_c_trainer: %s\n", hvd_last_error());
  return 1;
}

/* ---- layers. Gradients of parameters are added to what is there; so is the d_in of a norm, which has a bypass. --- */

static void linear_forward(float* out, const float* in, const float* weight, const float* bias, int rows, int n_in,
                           int n_out) {
  for (int r = 0; r != rows; ++r, in += n_in, out += n_out) {
    for (int o = 0; o != n_out; ++o) {
      float sum = bias ? bias[o] : 0.0f;
      for (int i = 0; i != n_in; ++i) sum += weight[o * n_in + i] * in[i];
      out[o] = sum;
    }
  }
}

static void linear_backward(float* restrict d_in, float* restrict d_weight, float* restrict d_bias,
                            const float* restrict d_out, const float* restrict in, const float* restrict weight,
                            int rows, int n_in, int n_out) {
  for (int r = 0; r != rows; ++r, in += n_in, d_in += n_in, d_out += n_out) {
    for (int i = 0; i != n_in; ++i) d_in[i] = 0.0f;
    for (int o = 0; o != n_out; ++o) {
      if (d_bias) d_bias[o] += d_out[o];
      for (int i = 0; i != n_in; ++i) {
        d_in[i] += d_out[o] * weight[o * n_in + i];
        d_weight[o * n_in + i] += d_out[o] * in[i];
      }
    }
  }
}

static void moments(const float* in, float* mean, float* scale) {
  float sum = 0.0f, squares = 0.0f;
  for (int i = 0; i != width; ++i) sum += in[i];
  *mean = sum / width;
  for (int i = 0; i != width; ++i) squares += (in[i] - *mean) * (in[i] - *mean);
  *scale = 1.0f / sqrtf(squares / width + 1e-5f);
}

static void norm_forward(float* out, const float* in, const norm* p, int rows) {
  for (int r = 0; r != rows; ++r, in += width, out += width) {
    float mean, scale;
    moments(in, &mean, &scale);
    for (int i = 0; i != width; ++i) out[i] = (in[i] - mean) * scale * p->gain[i] + p->shift[i];
  }
}

static void norm_backward(float* d_in, norm* d, const float* d_out, const float* in, const norm* p, int rows) {
  for (int r = 0; r != rows; ++r, in += width, d_in += width, d_out += width) {
    float mean, scale, sum = 0.0f, along = 0.0f;
    moments(in, &mean, &scale);
    for (int i = 0; i != width; ++i) {
      const float unit = (in[i] - mean) * scale, g = d_out[i] * p->gain[i];
      d->gain[i] += d_out[i] * unit;
      d->shift[i] += d_out[i];
      sum += g;
      along += g * unit;
    }
    /* The unit row has mean 0 and variance 1 whatever the input: changes that go there have no effect. */
    for (int i = 0; i != width; ++i) {
      const float unit = (in[i] - mean) * scale;
      d_in[i] += scale * (d_out[i] * p->gain[i] - sum / width - unit * along / width);
    }
  }
}

static void softmax(float* x, int n) {
  float largest = x[0], sum = 0.0f;
  for (int i = 1; i != n; ++i) largest = fmaxf(largest, x[i]);
  for (int i = 0; i != n; ++i) sum += x[i] = expf(x[i] - largest);
  for (int i = 0; i != n; ++i) x[i] /= sum;
}

static float dot(const float* a, const float* b) {
  float sum = 0.0f;
  for (int i = 0; i != head_width; ++i) sum += a[i] * b[i];
  return sum;
}

static void add_scaled(float* to, float factor, const float* from) {
  for (int i = 0; i != head_width; ++i) to[i] += factor * from[i];
}

/* A row of qkv is the queries of all heads, then their keys, then their values. Place t sees the places up to t. */
static void attention_forward(float* mixed, float* attention, const float* qkv, int rows) {
  const float scale = 1.0f / sqrtf(head_width);
  memset(mixed, 0, (size_t)(rows * width) * sizeof(float));
  for (int r = 0; r != rows; ++r) {
    const int t = r % length, first = r - t;
    for (int h = 0; h != heads; ++h) {
      const float* query = qkv + r * 3 * width + h * head_width;
      const float* key = qkv + first * 3 * width + width + h * head_width;
      const float* value = key + width;
      float* weight = attention + (r * heads + h) * length;
      for (int s = 0; s <= t; ++s) weight[s] = scale * dot(query, key + s * 3 * width);
      softmax(weight, t + 1);
      for (int s = 0; s <= t; ++s) add_scaled(mixed + r * width + h * head_width, weight[s], value + s * 3 * width);
    }
  }
}

static void attention_backward(float* d_qkv, const float* d_mixed, const float* attention, const float* qkv, int rows) {
  const float scale = 1.0f / sqrtf(head_width);
  memset(d_qkv, 0, (size_t)(rows * 3 * width) * sizeof(float));
  for (int r = 0; r != rows; ++r) {
    const int t = r % length, first = r - t;
    for (int h = 0; h != heads; ++h) {
      const int query = r * 3 * width + h * head_width;
      const float* weight = attention + (r * heads + h) * length;
      const float* d_out = d_mixed + r * width + h * head_width;
      float d_weight[length], sum = 0.0f;
      for (int s = 0; s <= t; ++s) {
        const int value = (first + s) * 3 * width + 2 * width + h * head_width;
        d_weight[s] = dot(d_out, qkv + value);
        sum += weight[s] * d_weight[s];
        add_scaled(d_qkv + value, weight[s], d_out);
      }
      for (int s = 0; s <= t; ++s) {
        const int key = (first + s) * 3 * width + width + h * head_width;
        const float d_score = scale * weight[s] * (d_weight[s] - sum);
        add_scaled(d_qkv + query, d_score, qkv + key);
        add_scaled(d_qkv + key, d_score, qkv + query);
      }
    }
  }
}

/* GELU, by the usual approximation: 0.5 x (1 + tanh(u)), with u = a (x + b x^3). */
static const float gelu_a = 0.79788456f, gelu_b = 0.044715f;

static void gelu_forward(float* out, const float* in, int n) {
  for (int i = 0; i != n; ++i) out[i] = 0.5f * in[i] * (1.0f + tanhf(gelu_a * in[i] * (1.0f + gelu_b * in[i] * in[i])));
}

static void gelu_backward(float* d, const float* in, int n) {
  for (int i = 0; i != n; ++i) {
    const float x = in[i], tanh_u = tanhf(gelu_a * x * (1.0f + gelu_b * x * x));
    d[i] *= 0.5f * (1.0f + tanh_u + x * (1.0f - tanh_u * tanh_u) * gelu_a * (1.0f + 3.0f * gelu_b * x * x));
  }
}

/* ---- the whole model --------------------------------------------------------------------------------------------- */

/* The mean loss of this rank's rows. */
static double forward(trainer* t) {
  const model* p = &t->weights;
  const int rows = t->rows, n = rows * width;
  values* v = &t->v;
  for (int i = 0; i != n; ++i) {
    const int r = i / width, c = i % width;
    v->blocks[0].in[i] = p->token[t->input[r] * width + c] + p->position[r % length * width + c];
  }
  for (int l = 0; l != layers; ++l) {
    const block* w = &p->blocks[l];
    block_values* b = &v->blocks[l];
    float* out = l + 1 == layers ? v->out : v->blocks[l + 1].in;
    norm_forward(b->normed_in, b->in, &w->before_attention, rows);
    linear_forward(b->qkv, b->normed_in, w->qkv, w->qkv_bias, rows, width, 3 * width);
    attention_forward(b->mixed, b->attention, b->qkv, rows);
    linear_forward(b->middle, b->mixed, w->mix, w->mix_bias, rows, width, width);
    for (int i = 0; i != n; ++i) b->middle[i] += b->in[i];
    norm_forward(b->normed_middle, b->middle, &w->before_mlp, rows);
    linear_forward(b->up, b->normed_middle, w->up, w->up_bias, rows, width, hidden);
    gelu_forward(b->active, b->up, rows * hidden);
    linear_forward(out, b->active, w->down, w->down_bias, rows, hidden, width);
    for (int i = 0; i != n; ++i) out[i] += b->middle[i];
  }
  norm_forward(v->normed_out, v->out, &p->last, rows);
  linear_forward(v->probability, v->normed_out, p->token, NULL, rows, width, vocabulary);
  double loss = 0.0;
  for (int r = 0; r != rows; ++r) {
    softmax(v->probability + r * vocabulary, vocabulary);
    loss -= log(v->probability[r * vocabulary + t->target[r]]);
  }
  return loss / rows;
}

/* These gradients are complete on this rank: with an engine, they start on their way. */
static int complete(trainer* t, const char* name, void* part, size_t bytes) {
  if (!t->engine) return HVD_OK;
  return hvd_engine_allreduce(t->engine, name, part, part, bytes / sizeof(float), HVD_FLOAT32, HVD_AVERAGE, NULL,
                              &t->in_flight[t->n_in_flight++]);
}

/* From the last layer to the first. The gradient of the rows' values, d, becomes that of the layer below. */
static int backward(trainer* t) {
  static float d[max_rows * width], d_logits[max_rows * vocabulary];
  static float d_narrow[max_rows * width], d_wide[max_rows * hidden], d_qkv[max_rows * 3 * width];
  const model* p = &t->weights;
  const values* v = &t->v;
  const int rows = t->rows;
  model* g = t->gradients;
  memset(g, 0, sizeof *g);
  memset(d, 0, sizeof d);
  for (int i = 0; i != rows * vocabulary; ++i) {
    const int wanted = t->target[i / vocabulary] == i % vocabulary;
    d_logits[i] = (v->probability[i] - (float)wanted) / (float)rows;
  }
  linear_backward(d_narrow, g->token, NULL, d_logits, v->normed_out, p->token, rows, width, vocabulary);
  norm_backward(d, &g->last, d_narrow, v->out, &p->last, rows);
  if (complete(t, "last", &g->last, sizeof g->last)) return failed();

  for (int l = layers - 1; l >= 0; --l) {
    const block* w = &p->blocks[l];
    const block_values* b = &v->blocks[l];
    block* gb = &g->blocks[l];
    linear_backward(d_wide, gb->down, gb->down_bias, d, b->active, w->down, rows, hidden, width);
    gelu_backward(d_wide, b->up, rows * hidden);
    linear_backward(d_narrow, gb->up, gb->up_bias, d_wide, b->normed_middle, w->up, rows, width, hidden);
    norm_backward(d, &gb->before_mlp, d_narrow, b->middle, &w->before_mlp, rows);
    linear_backward(d_narrow, gb->mix, gb->mix_bias, d, b->mixed, w->mix, rows, width, width);
    attention_backward(d_qkv, d_narrow, b->attention, b->qkv, rows);
    linear_backward(d_narrow, gb->qkv, gb->qkv_bias, d_qkv, b->normed_in, w->qkv, rows, width, 3 * width);
    norm_backward(d, &gb->before_attention, d_narrow, b->in, &w->before_attention, rows);
    char name[16];
    snprintf(name, sizeof name, "block %d", l);
    if (complete(t, name, gb, sizeof *gb)) return failed();
  }

  for (int i = 0; i != rows * width; ++i) {
    const int r = i / width, c = i % width;
    g->token[t->input[r] * width + c] += d[i];
    g->position[r % length * width + c] += d[i];
  }
  return complete(t, "embeddings", g, sizeof g->token + sizeof g->position) ? failed() : 0;
}

/* Means over all ranks: this is all that data-parallel training takes. */
static int reduce(trainer* t) {
  if (!t->engine) {
    return hvd_allreduce(t->comm, t->gradients, t->gradients, parameters, HVD_FLOAT32, HVD_AVERAGE) ? failed() : 0;
  }
  for (; t->n_in_flight; --t->n_in_flight) {
    const hvd_handle h = t->in_flight[t->n_in_flight - 1];
    if (hvd_wait(h, -1.0) || hvd_release(h)) return failed();
  }
  return 0;
}

/* AdamW: steps of similar size for all parameters, and a pull of all towards 0. */
static void update(trainer* t, int step) {
  const float rate = 3e-3f, keep_mean = 0.9f, keep_variance = 0.99f, decay = 0.01f;
  const float mean_part = 1.0f - powf(keep_mean, (float)step), variance_part = 1.0f - powf(keep_variance, (float)step);
  float *w = (float*)&t->weights, *m = (float*)&t->mean, *v = (float*)&t->variance;
  const float* g = (const float*)t->gradients;
  for (int i = 0; i != parameters; ++i) {
    m[i] = keep_mean * m[i] + (1.0f - keep_mean) * g[i];
    v[i] = keep_variance * v[i] + (1.0f - keep_variance) * g[i] * g[i];
    w[i] -= rate * (m[i] / mean_part / (sqrtf(v[i] / variance_part) + 1e-8f) + decay * w[i]);
  }
}

/* ---- data and start values --------------------------------------------------------------------------------------- */

/* The i-th of a fixed sequence of random numbers: any rank can compute any of them. */
static uint32_t random_at(int index) {
  uint32_t i = ((uint32_t)index + 1) * 2654435769u;
  i = (i ^ (i >> 16)) * 2246822519u;
  i = (i ^ (i >> 13)) * 3266489917u;
  return i ^ (i >> 16);
}

static void take_part(trainer* t, int rank) {
  for (int r = 0; r != t->rows; ++r) {
    const int row = rank * t->rows + r, i = row + row / length; /* a sequence has one token more, the last target */
    t->input[r] = (int)(random_at(i) % vocabulary);
    t->target[r] = (int)(random_at(i + 1) % vocabulary);
  }
}

static void set_weights(model* p) {
  float* w = (float*)p;
  for (int i = 0; i != parameters; ++i) w[i] = ((float)(random_at(4000 + i) >> 8) / 8388608.0f - 1.0f) * 0.1f;
  for (int i = 0; i != width; ++i) {
    p->last.gain[i] = 1.0f;
    for (int l = 0; l != layers; ++l) p->blocks[l].before_attention.gain[i] = p->blocks[l].before_mlp.gain[i] = 1.0f;
  }
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static uint64_t checksum(const model* p) {
  const unsigned char* bytes = (const unsigned char*)p;
  uint64_t sum = 14695981039346656037u;
  for (size_t i = 0; i != sizeof *p; ++i) sum = (sum ^ bytes[i]) * 1099511628211u;
  return sum;
}

static int train(trainer* t, int rank) {
  take_part(t, rank);
  if (rank == 0) set_weights(&t->weights);
  if (hvd_broadcast(t->comm, &t->weights, &t->weights, parameters, HVD_FLOAT32, 0)) return failed();

  for (int step = 0;; ++step) {
    double loss = forward(t);
    if (step % 5 == 0) {
      if (hvd_allreduce(t->comm, &loss, &loss, 1, HVD_FLOAT64, HVD_AVERAGE)) return failed();
      if (rank == 0) printf("step %2d: loss %.4f\n", step, loss);
    }
    if (step == steps) break;
    if (backward(t) || reduce(t)) return 1;
    update(t, step + 1);
  }

  /* The allreduce gives all ranks the same bits, so their parameters never drift apart. */
  const uint64_t sum = checksum(&t->weights);
  uint64_t least, most;
  if (hvd_allreduce(t->comm, &sum, &least, 1, HVD_UINT64, HVD_MIN) ||
      hvd_allreduce(t->comm, &sum, &most, 1, HVD_UINT64, HVD_MAX)) {
    return failed();
  }
  if (rank == 0) puts(least == most ? "all ranks have the same bits" : "the ranks' parameters differ");
  return least == most ? 0 : 1;
}

/* One rank. */
static int run(hvd_comm comm, void* with_engine) {
  const int size = hvd_size(comm), rank = hvd_rank(comm);
  if (size < 1 || rank < 0) return failed();
  if (batch % size != 0) {
    if (rank == 0) fprintf(stderr, "12_c_trainer: %d ranks cannot share %d sequences evenly\n", size, batch);
    return 2;
  }
  trainer* t = calloc(1, sizeof *t);
  if (!t) return fputs("12_c_trainer: no memory\n", stderr), 1;
  t->comm = comm;
  t->rows = max_rows / size;
  void* shared = NULL;
  if (hvd_alloc_shared(comm, sizeof(model), &shared)) return failed();
  t->gradients = shared;
  if (*(int*)with_engine && hvd_engine_init(comm, &t->engine)) return failed();
  const int code = train(t, rank);
  if (hvd_engine_free(t->engine) || hvd_free_shared(comm, shared)) return failed();
  free(t);
  return code;
}

int main(int argc, char** argv) {
  long ranks = 0;
  int with_engine = 0, code = 0;
  for (int i = 1; i != argc; ++i) {
    if (strcmp(argv[i], "--engine") == 0) {
      with_engine = 1;
    } else {
      char* end = argv[i];
      if (strcmp(argv[i], "--ranks") == 0 && i + 1 != argc) ranks = strtol(argv[++i], &end, 10);
      if (end == argv[i] || *end || ranks < 1 || ranks > batch) {
        fprintf(stderr, "usage: 12_c_trainer [--ranks N] [--engine], N from 1 to %d\n", batch);
        return 2;
      }
    }
  }
  /* Without --ranks this process is one rank: of those that a launcher has started, or alone. */
  if (ranks == 0) {
    hvd_comm comm;
    if (hvd_init(HVD_ABI_VERSION, NULL, &comm)) return failed();
    code = run(comm, &with_engine);
    return hvd_free(comm) ? failed() : code;
  }
  return hvd_fork_run(HVD_ABI_VERSION, (int)ranks, run, &with_engine, &code) ? failed() : code;
}
