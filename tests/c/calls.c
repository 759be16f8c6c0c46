/* tests/c/calls.c: every function of hvd/c/hvd.h on 1 to 4 ranks, with the values that must come out.
 *
 * usage: calls [TRANSPORT]   with TRANSPORT as one rank of those that a launcher has started, else with ranks of its
 * own
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

enum { most = 1000, most_ranks = 4 };

/* ---- elements of any type, as small whole numbers that all of them have ---- */

static void put(void* to, int dtype, size_t i, double value) {
  const float f = (float)value;
  uint32_t bits;
  int e;
  memcpy(&bits, &f, sizeof bits);
  switch (dtype) {
    case HVD_INT8: ((int8_t*)to)[i] = (int8_t)value; break;
    case HVD_UINT8: ((uint8_t*)to)[i] = (uint8_t)value; break;
    case HVD_INT16: ((int16_t*)to)[i] = (int16_t)value; break;
    case HVD_UINT16: ((uint16_t*)to)[i] = (uint16_t)value; break;
    case HVD_INT32: ((int32_t*)to)[i] = (int32_t)value; break;
    case HVD_UINT32: ((uint32_t*)to)[i] = (uint32_t)value; break;
    case HVD_INT64: ((int64_t*)to)[i] = (int64_t)value; break;
    case HVD_UINT64: ((uint64_t*)to)[i] = (uint64_t)value; break;
    case HVD_FLOAT16: {
      const double fraction = frexp(value, &e); /* in [0.5, 1), or 0 */
      ((uint16_t*)to)[i] = (uint16_t)(value > 0 ? (e + 14) * 1024 + (int)(fraction * 2048) - 1024 : 0);
      break;
    }
    case HVD_BFLOAT16: ((uint16_t*)to)[i] = (uint16_t)(bits >> 16); break;
    case HVD_FLOAT32: ((float*)to)[i] = f; break;
    case HVD_FLOAT64: ((double*)to)[i] = value; break;
    case HVD_BOOL: ((unsigned char*)to)[i] = value != 0; break;
    case HVD_COMPLEX64:
      ((float*)to)[2 * i] = f;
      ((float*)to)[2 * i + 1] = 2 * f;
      break;
    default: ((double*)to)[2 * i] = value; ((double*)to)[2 * i + 1] = 2 * value;
  }
}

static int holds(const void* from, int dtype, size_t i, double value) {
  char wanted[16];
  const size_t size = hvd_size_of(dtype);
  put(wanted, dtype, 0, value);
  return memcmp((const char*)from + i * size, wanted, size) == 0;
}

static double value(int rank, size_t i) { return rank + 1 + (double)(i % 5); }

static int defined(int dtype, int op) {
  const int complex = dtype == HVD_COMPLEX64 || dtype == HVD_COMPLEX128;
  if (op == HVD_MIN || op == HVD_MAX) return !complex;
  return dtype != HVD_BOOL && (op != HVD_PRODUCT || !complex);
}

/* Over the ranks first to last. */
static double combined(int op, int first, int last, int size, size_t i) {
  double all = value(first, i);
  for (int r = first + 1; r <= last; ++r) {
    const double v = value(r, i);
    if (op == HVD_MIN)
      all = v < all ? v : all;
    else if (op == HVD_MAX)
      all = v > all ? v : all;
    else if (op == HVD_PRODUCT)
      all *= v;
    else
      all += v;
  }
  return op == HVD_AVERAGE ? all / size : all;
}

/* The first of `from` that is not `expected`; count if all are. */
#define ALL(from, dtype, count, expected)                                                                              \
  do {                                                                                                                 \
    size_t wrong_ = 0;                                                                                                 \
    for (size_t i = 0; i < (count); ++i) wrong_ += !holds(from, dtype, i, expected);                                   \
    ++checks;                                                                                                          \
    if (wrong_ != 0) {                                                                                                 \
      fprintf(stderr, "%d of %d, dtype %d, %d elements: ", rank, size, dtype, (int)(count));                           \
      report(__FILE__, __LINE__, #expected, "wrong elements");                                                         \
    }                                                                                                                  \
  } while (0)

static _Alignas(64) char in[16 * most * most_ranks], out[16 * most * most_ranks];

static void fill(int dtype, size_t count, int rank) {
  memset(in, 0, sizeof in);
  memset(out, 0, sizeof out);
  for (size_t i = 0; i < count; ++i) put(in, dtype, i, value(rank, i));
}

static void reductions(hvd_comm comm, int dtype, size_t count) {
  const int rank = hvd_rank(comm), size = hvd_size(comm);
  for (int op = HVD_AVERAGE; op <= HVD_PRODUCT; ++op) {
    if (op == HVD_ADASUM || !defined(dtype, op)) continue;
    const int whole = dtype != HVD_FLOAT16 && dtype != HVD_BFLOAT16 && (dtype < HVD_FLOAT16 || dtype == HVD_BOOL);
    const int shown = op != HVD_AVERAGE || (!whole && size != 3); /* others are rounded */
    const int fits = op != HVD_PRODUCT || (dtype != HVD_INT8 && dtype != HVD_UINT8 && dtype != HVD_BFLOAT16);
    if (!shown || !fits) continue;

    fill(dtype, count, rank);
    OK(hvd_allreduce(comm, in, out, count, dtype, op));
    ALL(out, dtype, count, combined(op, 0, size - 1, size, i));
    OK(hvd_allreduce(comm, in, in, count, dtype, op));
    ALL(in, dtype, count, combined(op, 0, size - 1, size, i));

    for (int root = 0; root < size; ++root) {
      fill(dtype, count, rank);
      OK(hvd_reduce(comm, in, rank == root ? out : NULL, count, dtype, op, root));
      if (rank == root) ALL(out, dtype, count, combined(op, 0, size - 1, size, i));
      ALL(in, dtype, count, value(rank, i));
    }

    if (op != HVD_AVERAGE) {
      fill(dtype, count, rank);
      OK(hvd_scan(comm, in, out, count, dtype, op));
      ALL(out, dtype, count, combined(op, 0, rank, size, i));
      OK(hvd_scan(comm, in, in, count, dtype, op));
      ALL(in, dtype, count, combined(op, 0, rank, size, i));

      fill(dtype, count, rank);
      OK(hvd_exscan(comm, in, in, count, dtype, op));
      ALL(in, dtype, count, rank == 0 ? value(0, i) : combined(op, 0, rank - 1, size, i));
    }

    const size_t start = (size_t)rank * count;
    fill(dtype, count * (size_t)size, rank);
    OK(hvd_reduce_scatter(comm, in, out, count, dtype, op));
    ALL(out, dtype, count, combined(op, 0, size - 1, size, start + i));
    char* const own = in + start * hvd_size_of(dtype);
    OK(hvd_reduce_scatter(comm, in, own, count, dtype, op));
    ALL(own, dtype, count, combined(op, 0, size - 1, size, start + i));
  }
}

static void moves(hvd_comm comm, int dtype, size_t count) {
  const int rank = hvd_rank(comm), size = hvd_size(comm);
  const size_t unit = hvd_size_of(dtype), all = count * (size_t)size, start = (size_t)rank * count;
  const size_t blocks = count == 0 ? 1 : count; /* to divide by */

  fill(dtype, count, rank);
  OK(hvd_allgather(comm, in, out, count, dtype));
  ALL(out, dtype, all, value((int)(i / blocks), i % blocks));
  memset(out, 0, sizeof out);
  memcpy(out + start * unit, in, count * unit);
  OK(hvd_allgather(comm, out + start * unit, out, count, dtype));
  ALL(out, dtype, all, value((int)(i / blocks), i % blocks));

  for (int root = 0; root < size; ++root) {
    fill(dtype, count, rank);
    OK(hvd_broadcast(comm, rank == root ? in : NULL, out, count, dtype, root));
    ALL(out, dtype, count, value(root, i));
    OK(hvd_broadcast(comm, in, in, count, dtype, root));
    ALL(in, dtype, count, value(root, i));

    fill(dtype, count, rank);
    OK(hvd_gather(comm, in, rank == root ? out : NULL, count, dtype, root));
    if (rank == root) ALL(out, dtype, all, value((int)(i / blocks), i % blocks));

    fill(dtype, all, rank);
    OK(hvd_scatter(comm, rank == root ? in : NULL, out, count, dtype, root));
    ALL(out, dtype, count, value(root, start + i));
  }

  fill(dtype, all, rank);
  OK(hvd_alltoall(comm, in, out, count, dtype));
  ALL(out, dtype, all, value((int)(i / blocks), start + i % blocks));
  OK(hvd_alltoall(comm, in, in, count, dtype));
  ALL(in, dtype, all, value((int)(i / blocks), start + i % blocks));
}

/* Rank r has r + 2 elements, and rank 1 has none. */
static void unequal(hvd_comm comm, int dtype) {
  const int rank = hvd_rank(comm), size = hvd_size(comm);
  size_t counts[most_ranks], starts[most_ranks + 1] = {0}, send[most_ranks], receive[most_ranks];
  int owner[64];
  for (int r = 0; r < size; ++r) {
    counts[r] = r == 1 ? 0 : (size_t)r + 2;
    starts[r + 1] = starts[r] + counts[r];
    for (size_t i = starts[r]; i < starts[r + 1]; ++i) owner[i] = r;
  }
  const size_t all = starts[size], own = counts[rank], start = starts[rank];

  fill(dtype, own, rank);
  OK(hvd_allgather_v(comm, in, out, counts, dtype));
  ALL(out, dtype, all, value(owner[i], i - starts[owner[i]]));
  for (int root = 0; root < size; ++root) {
    fill(dtype, own, rank);
    OK(hvd_gather_v(comm, in, rank == root ? out : NULL, counts, dtype, root));
    if (rank == root) ALL(out, dtype, all, value(owner[i], i - starts[owner[i]]));
    fill(dtype, all, rank);
    OK(hvd_scatter_v(comm, rank == root ? in : NULL, own ? out : NULL, counts, dtype, root));
    ALL(out, dtype, own, value(root, start + i));
  }
  if (defined(dtype, HVD_SUM)) {
    fill(dtype, all, rank);
    OK(hvd_reduce_scatter_v(comm, in, out, counts, dtype, HVD_SUM));
    ALL(out, dtype, own, combined(HVD_SUM, 0, size - 1, size, start + i));
  }

  /* rank + r elements from a rank to rank r */
  size_t sent = 0, came = 0;
  for (int r = 0; r < size; ++r) {
    send[r] = receive[r] = (size_t)(rank + r);
    sent += send[r];
  }
  fill(dtype, sent, rank);
  OK(hvd_alltoall_v(comm, in, out, send, receive, dtype));
  for (int r = 0; r < size; ++r) {
    size_t theirs = 0; /* where rank r has what it sends to this one */
    for (int q = 0; q < rank; ++q) theirs += (size_t)(r + q);
    for (size_t i = 0; i < receive[r]; ++i) CHECK(holds(out, dtype, came + i, value(r, theirs + i)));
    came += receive[r];
  }
}

static void others(hvd_comm comm) {
  const int rank = hvd_rank(comm), size = hvd_size(comm);
  OK(hvd_barrier(comm));

  fill(HVD_FLOAT64, 3, rank);
  OK(hvd_allreduce_scaled(comm, in, out, 3, HVD_FLOAT64, HVD_SUM, 2.0, 0.25));
  ALL(out, HVD_FLOAT64, 3, combined(HVD_SUM, 0, size - 1, size, i) / 2);

  /* equal inputs: adasum is their mean */
  for (int i = 0; i < 4; ++i) put(in, HVD_FLOAT32, (size_t)i, i + 1);
  OK(hvd_allreduce(comm, in, out, 4, HVD_FLOAT32, HVD_ADASUM));
  for (int i = 0; i < 4; ++i) CHECK(fabsf(((float*)out)[i] - (float)(i + 1)) < 1e-5F);

  int32_t token = rank == 0 ? 17 : 0;
  if (size > 1) {
    if (rank > 0) OK(hvd_recv(comm, &token, 1, HVD_INT32, rank - 1));
    ++token;
    OK(hvd_send(comm, &token, 1, HVD_INT32, (rank + 1) % size));
    if (rank == 0) OK(hvd_recv(comm, &token, 1, HVD_INT32, size - 1));
    CHECK(token == (rank == 0 ? 17 + size : 18 + rank));
  }

  /* a list: float32, float32 that travels as float16, int64, and nothing at all */
  float single[5], narrow[3] = {1.0F, 2.5F, 3.0F}, narrow_out[3];
  int64_t number = 10 + rank;
  for (int i = 0; i < 5; ++i) single[i] = (float)(rank * i);
  const hvd_tensor tensors[] = {{single, single, 5, HVD_FLOAT32, HVD_FLOAT32},
                                {narrow, narrow_out, 3, HVD_FLOAT32, HVD_FLOAT16},
                                {&number, &number, 1, HVD_INT64, HVD_INT64},
                                {NULL, NULL, 0, HVD_BOOL, HVD_BOOL}};
  OK(hvd_allreduce_list(comm, tensors, 3, HVD_SUM));
  for (int i = 0; i < 5; ++i) CHECK(single[i] == (float)(i * size * (size - 1) / 2));
  for (int i = 0; i < 3; ++i) CHECK(narrow_out[i] == narrow[i] * (float)size);
  CHECK(number == 10 * size + size * (size - 1) / 2);
  OK(hvd_allreduce_list(comm, NULL, 0, HVD_SUM));

  for (int i = 0; i < 5; ++i) single[i] = (float)(rank * i);
  number = rank;
  hvd_tensor moved[4];
  memcpy(moved, tensors, sizeof moved);
  moved[1].wire = HVD_FLOAT32;
  memset(narrow_out, 0, sizeof narrow_out);
  OK(hvd_broadcast_list(comm, moved, 4, size - 1));
  for (int i = 0; i < 5; ++i) CHECK(single[i] == (float)((size - 1) * i));
  CHECK(number == size - 1 && narrow_out[2] == 3.0F);
}

static void groups(hvd_comm comm) {
  const int rank = hvd_rank(comm), size = hvd_size(comm);
  hvd_comm part = -1;
  OK(hvd_split(comm, rank % 2, -rank, &part)); /* in reverse order */
  const int members = (size + (rank % 2 == 0)) / 2;
  CHECK(hvd_size(part) == members);
  CHECK(hvd_rank(part) == members - 1 - rank / 2);
  int32_t sum = rank;
  OK(hvd_allreduce(part, &sum, &sum, 1, HVD_INT32, HVD_SUM));
  int32_t wanted = 0;
  for (int r = rank % 2; r < size; r += 2) wanted += r;
  CHECK(sum == wanted);
  OK(hvd_free(part));

  OK(hvd_split(comm, rank == 0 ? 3 : -rank, 0, &part)); /* all but rank 0 are in none */
  CHECK((part != 0) == (rank == 0));
  if (part != 0) CHECK(hvd_size(part) == 1);
  OK(hvd_free(part));

  void *memory = NULL, *empty = &sum;
  OK(hvd_alloc_shared(comm, 16 * most, &memory));
  float* const shared = (float*)memory;
  for (int i = 0; i < 4 * most; ++i) {
    CHECK(shared[i] == 0.0F);
    shared[i] = (float)(rank + i);
  }
  OK(hvd_allreduce(comm, shared, shared, 4 * most, HVD_FLOAT32, HVD_SUM));
  for (int i = 0; i < 4 * most; ++i) CHECK(shared[i] == (float)(size * i + size * (size - 1) / 2));
  OK(hvd_alloc_shared(comm, 0, &empty));
  CHECK(empty == NULL);
  OK(hvd_free_shared(comm, empty));
  OK(hvd_barrier(comm));
  OK(hvd_free_shared(comm, memory));
}

static void engines(hvd_comm comm) {
  const int rank = hvd_rank(comm), size = hvd_size(comm);
  hvd_engine engine = 0;
  OK(hvd_engine_init(comm, &engine));

  /* ranks submit in different orders */
  enum { named = 8 };
  float gradients[named][16];
  hvd_handle handles[named];
  for (int k = 0; k < named; ++k) {
    const int which = (k * 3 + rank) % named;
    char name[16];
    snprintf(name, sizeof name, "gradient.%d", which);
    for (int i = 0; i < 16; ++i) gradients[which][i] = (float)(rank + which + i);
    OK(hvd_engine_allreduce(engine, name, gradients[which], gradients[which], 16, HVD_FLOAT32, HVD_SUM, NULL,
                            &handles[which]));
  }
  for (int k = 0; k < named; ++k) {
    OK(hvd_wait(handles[k], -1));
    int done = 0;
    OK(hvd_poll(handles[k], &done));
    CHECK(done == 1);
    for (int i = 0; i < 16; ++i) CHECK(gradients[k][i] == (float)(size * (k + i) + size * (size - 1) / 2));
    OK(hvd_release(handles[k]));
  }

  /* a group of tensors, which travel as float16, with the reduction apart from the input */
  const hvd_submit half = {0, 5, HVD_FLOAT16};
  float a[3] = {1, 2, 3}, b[2] = {0.5F, 0.25F}, a_sum[3], b_sum[2];
  const hvd_tensor list[] = {{a, a_sum, 3, HVD_FLOAT32, HVD_FLOAT32}, {b, b_sum, 2, HVD_FLOAT32, HVD_FLOAT32}};
  hvd_handle h = 0;
  OK(hvd_engine_allreduce_list(engine, "group", list, 2, HVD_AVERAGE, &half, &h));
  OK(hvd_wait(h, 60));
  CHECK(a_sum[0] == 1 && a_sum[1] == 2 && a_sum[2] == 3 && b_sum[0] == 0.5F && b_sum[1] == 0.25F);
  OK(hvd_release(h));

  int16_t word[2] = {(int16_t)rank, (int16_t)(2 * rank)};
  OK(hvd_engine_broadcast(engine, "word", word, word, 2, HVD_INT16, size - 1, NULL, &h));
  OK(hvd_wait(h, -1));
  CHECK(word[0] == size - 1 && word[1] == 2 * (size - 1));
  OK(hvd_release(h));

  /* rank r gives r elements */
  const void* data = NULL;
  size_t count = 0;
  double mine[most_ranks] = {rank + 0.5, rank + 0.5, rank + 0.5, rank + 0.5};
  OK(hvd_engine_allgather(engine, "gathered", mine, (size_t)rank, HVD_FLOAT64, NULL, &h));
  OK(hvd_wait(h, -1));
  OK(hvd_output(h, &data, &count));
  CHECK(count == (size_t)(size * (size - 1) / 2));
  size_t at = 0;
  for (int r = 0; r < size; ++r) {
    for (int i = 0; i < r; ++i) CHECK(((const double*)data)[at++] == r + 0.5);
  }
  OK(hvd_release(h));

  /* 2 size + 1 elements: rank 0 gets one more */
  int32_t numbers[2 * most_ranks + 1];
  for (int i = 0; i < 2 * size + 1; ++i) numbers[i] = i + rank;
  OK(hvd_engine_reduce_scatter(engine, "scattered", numbers, (size_t)(2 * size + 1), HVD_INT32, HVD_MAX, NULL, &h));
  OK(hvd_wait(h, -1));
  OK(hvd_output(h, &data, &count));
  CHECK(count == (rank == 0 ? 3U : 2U));
  for (size_t i = 0; i < count; ++i) {
    CHECK(((const int32_t*)data)[i] == 2 * rank + (rank != 0) + (int)i + size - 1);
  }
  OK(hvd_release(h));

  /* one element for rank 0, two for rank 1, and so on; then equal parts */
  int32_t letters[most_ranks * (most_ranks + 1) / 2];
  size_t splits[most_ranks], sent = 0;
  for (int r = 0; r < size; ++r) {
    splits[r] = (size_t)r + 1;
    for (int i = 0; i <= r; ++i) letters[sent++] = 100 * rank + r;
  }
  OK(hvd_engine_alltoall(engine, "letters", letters, sent, HVD_INT32, splits, NULL, &h));
  OK(hvd_wait(h, -1));
  OK(hvd_output(h, &data, &count));
  CHECK(count == (size_t)(size * (rank + 1)));
  for (size_t i = 0; i < count; ++i) CHECK(((const int32_t*)data)[i] == 100 * (int)(i / (size_t)(rank + 1)) + rank);
  size_t received[most_ranks] = {0};
  OK(hvd_received_splits(h, received));
  for (int r = 0; r < size; ++r) CHECK(received[r] == (size_t)rank + 1);
  OK(hvd_release(h));
  for (int r = 0; r < size; ++r) letters[r] = 10 * rank + r;
  OK(hvd_engine_alltoall(engine, "equal", letters, (size_t)size, HVD_INT32, NULL, NULL, &h));
  OK(hvd_wait(h, -1));
  OK(hvd_output(h, &data, &count));
  CHECK(count == (size_t)size);
  for (int r = 0; r < size; ++r) CHECK(((const int32_t*)data)[r] == 10 * r + rank);
  OK(hvd_release(h));

  void* bucket = NULL;
  OK(hvd_engine_alloc_bucket(engine, 1000 * sizeof(float), &bucket));
  float* slots = bucket;
  for (int i = 0; i < 1000; ++i) {
    CHECK(slots[i] == 0);
    slots[i] = (float)(rank + i);
  }
  OK(hvd_engine_allreduce(engine, "bucket", slots, slots, 1000, HVD_FLOAT32, HVD_SUM, NULL, &h));
  OK(hvd_wait(h, -1));
  for (int i = 0; i < 1000; ++i) CHECK(slots[i] == (float)(size * (size - 1) / 2 + size * i));
  OK(hvd_release(h));

  OK(hvd_engine_barrier(engine, "end of step", NULL, &h));
  OK(hvd_wait(h, -1));
  OK(hvd_release(h));

  /* a process set of the last ranks, in reverse order */
  int set = 0, ranks[most_ranks], members = 0;
  for (int r = size - 1; r >= size / 2; --r) ranks[members++] = r;
  OK(hvd_engine_add_process_set(engine, ranks, (size_t)members, &set));
  CHECK(set == 1);
  if (rank >= size / 2) {
    const hvd_submit in_set = {set, 0, 0};
    int32_t who = rank;
    OK(hvd_engine_allreduce(engine, "who", &who, &who, 1, HVD_INT32, HVD_MIN, &in_set, &h));
    OK(hvd_wait(h, -1));
    CHECK(who == size / 2);
    OK(hvd_release(h));
    int32_t root = rank;
    OK(hvd_engine_broadcast(engine, "root", &root, &root, 1, HVD_INT32, 0, &in_set, &h));
    OK(hvd_wait(h, -1));
    CHECK(root == size - 1);
    OK(hvd_release(h));
    for (int r = 0; r < members; ++r) splits[r] = 1;
    OK(hvd_engine_alltoall(engine, "in set", letters, (size_t)members, HVD_INT32, splits, &in_set, &h));
    OK(hvd_wait(h, -1));
    OK(hvd_output(h, &data, &count));
    CHECK(count == (size_t)members);
    OK(hvd_release(h));
  }
  OK(hvd_engine_remove_process_set(engine, set));

  /* a handle is released before its operation is done; the result of another one outlives the engine */
  float kept = 1;
  OK(hvd_engine_allreduce(engine, "released", &kept, &kept, 1, HVD_FLOAT32, HVD_SUM, NULL, &h));
  OK(hvd_release(h));
  /* a name is held until its handle was waited for, polled as done, or released */
  float again = 1;
  hvd_handle second = 0;
  int done = 0;
  OK(hvd_engine_allreduce(engine, "again", &again, &again, 1, HVD_FLOAT32, HVD_SUM, NULL, &h));
  for (int i = 0; i < 10; ++i) {
    REFUSED(hvd_engine_allreduce(engine, "again", &again, &again, 1, HVD_FLOAT32, HVD_SUM, NULL, &second),
            HVD_INVALID_ARGUMENT, "was not waited for");
  }
  OK(hvd_release(h));
  OK(hvd_engine_allreduce(engine, "again", &again, &again, 1, HVD_FLOAT32, HVD_SUM, NULL, &h));
  while (!done) OK(hvd_poll(h, &done));
  OK(hvd_engine_allreduce(engine, "again", &again, &again, 1, HVD_FLOAT32, HVD_SUM, NULL, &second));
  OK(hvd_wait(second, -1));
  CHECK(again == (float)(size * size * size));
  OK(hvd_release(h));
  OK(hvd_engine_allreduce(engine, "again", &again, &again, 1, HVD_FLOAT32, HVD_MAX, NULL, &h));
  OK(hvd_wait(h, -1));
  OK(hvd_release(h));
  OK(hvd_release(second));
  hvd_handle last = 0;
  OK(hvd_engine_allgather(engine, "last", &kept, 0, HVD_FLOAT32, NULL, &last));
  OK(hvd_wait(last, -1));
  OK(hvd_release(last));
  OK(hvd_engine_allgather(engine, "last", mine, 1, HVD_FLOAT64, NULL, &last));

  /* rank 0 has no more data: it gives zeros */
  if (rank == 0) {
    OK(hvd_wait(last, -1));
    OK(hvd_engine_join(engine, &h));
  } else {
    float one = 1;
    OK(hvd_engine_allreduce(engine, "rest", &one, &one, 1, HVD_FLOAT32, HVD_SUM, NULL, &h));
    OK(hvd_wait(h, -1));
    CHECK(one == (float)(size - 1));
    OK(hvd_release(h));
    OK(hvd_engine_join(engine, &h));
  }
  OK(hvd_wait(h, -1));
  int joined = -1;
  OK(hvd_last_joined(h, &joined));
  CHECK(joined >= 0 && joined < size);
  OK(hvd_release(h));
  CHECK(kept == (float)size);
  OK(hvd_engine_free(engine));
  OK(hvd_wait(last, -1));
  OK(hvd_output(last, &data, &count));
  CHECK(count == (size_t)size);
  for (int r = 0; r < size; ++r) CHECK(((const double*)data)[r] == r + 0.5);
  OK(hvd_release(last));

  /* an engine over a communicator that is freed first */
  hvd_comm part = 0;
  OK(hvd_split(comm, 0, rank, &part));
  OK(hvd_engine_init(part, &engine));
  OK(hvd_free(part));
  int64_t sum = 1;
  OK(hvd_engine_allreduce(engine, "sum", &sum, &sum, 1, HVD_INT64, HVD_SUM, NULL, &h));
  OK(hvd_wait(h, -1));
  CHECK(sum == size);
  OK(hvd_release(h));
  OK(hvd_engine_free(engine));
}

static int every_call(hvd_comm comm, void* user) {
  const int wanted = *(const int*)user;
  const size_t counts[] = {0, 1, 7, most};
  CHECK(hvd_size(comm) == wanted);
  CHECK(hvd_rank(comm) >= 0 && hvd_rank(comm) < wanted);
  for (int dtype = HVD_INT8; dtype <= HVD_COMPLEX128; ++dtype) {
    for (size_t k = 0; k < sizeof counts / sizeof *counts; ++k) {
      reductions(comm, dtype, counts[k]);
      moves(comm, dtype, counts[k]);
    }
    unequal(comm, dtype);
  }
  others(comm);
  groups(comm);
  engines(comm);
  if (hvd_rank(comm) == 0) printf("%d ranks: %d checks, %d failures\n", wanted, checks, failures);
  return failures == 0 ? 0 : 1;
}

/* The last of three ranks is killed; the others go on, with their engine. */
static int survive(hvd_comm comm, void* user) {
  (void)user;
  const int rank = hvd_rank(comm);
  hvd_engine engine = 0;
  hvd_handle h = 0;
  OK(hvd_engine_init(comm, &engine));
  int32_t x[2] = {1, 1}, y = rank + 1;
  OK(hvd_barrier(comm));
  if (rank == 2) raise(SIGKILL);
  OK(hvd_engine_allreduce(engine, "x", x, x, 2, HVD_INT32, HVD_SUM, NULL, &h));
  CHECK(hvd_wait(h, 60) == HVD_PEER_LOST && hvd_last_error_rank() == 2);
  OK(hvd_release(h));
  hvd_comm next = 0;
  OK(hvd_without_lost(comm, &next));
  CHECK(hvd_rank(next) == rank && hvd_size(next) == 2);
  OK(hvd_engine_continue_over(engine, next));
  OK(hvd_free(comm));
  OK(hvd_engine_allreduce(engine, "x", &y, &y, 1, HVD_INT32, HVD_SUM, NULL, &h));
  OK(hvd_wait(h, 60));
  CHECK(y == 3);
  OK(hvd_release(h));
  OK(hvd_engine_free(engine));
  OK(hvd_free(next));
  if (failures != 0) abort(); /* the exit code of hvd_fork_run is then that of this signal */
  return 0;
}

static int three_times_rank(hvd_comm comm, void* user) { return hvd_rank(comm) == *(const int*)user ? 3 : 0; }

static int as_one_rank(const char* transport) {
  hvd_comm comm = 0;
  OK(hvd_init(HVD_ABI_VERSION, transport, &comm));
  int size = hvd_size(comm);
  if (failures == 0) every_call(comm, &size);
  OK(hvd_free(comm));
  return failures == 0 ? 0 : 1;
}

int main(int argc, char** argv) {
  if (argc > 1) return as_one_rank(argv[1]);
  const size_t sizes[] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 8, 16};
  for (int t = HVD_INT8; t <= HVD_COMPLEX128; ++t) CHECK(hvd_size_of(t) == sizes[t]);
  CHECK(hvd_size_of(-1) == 0 && hvd_size_of(15) == 0 && hvd_size_of(256) == 0);
  CHECK(strchr(hvd_version(), '.') != NULL);

  for (int np = 1; np <= most_ranks; ++np) {
    int code = -1;
    OK(hvd_fork_run(HVD_ABI_VERSION, np, every_call, &np, &code));
    CHECK(code == 0);
  }
  int which = 1, code = -1;
  OK(hvd_fork_run(HVD_ABI_VERSION, 2, three_times_rank, &which, &code));
  CHECK(code == 3);
  OK(hvd_fork_run(HVD_ABI_VERSION, 3, survive, NULL, &code));
  CHECK(code == 128 + SIGKILL);

  /* alone: nothing says that a launcher has started this process */
  hvd_comm comm = 0;
  OK(hvd_init(HVD_ABI_VERSION, NULL, &comm));
  CHECK(hvd_rank(comm) == 0 && hvd_size(comm) == 1);
  double x = 4;
  OK(hvd_allreduce(comm, &x, &x, 1, HVD_FLOAT64, HVD_AVERAGE));
  CHECK(x == 4);
  OK(hvd_free(comm));
  OK(hvd_free(0));
  OK(hvd_engine_free(0));
  OK(hvd_release(0));
  OK(hvd_init(HVD_ABI_VERSION, "shm", &comm)); /* and is left to the end of the process, with an engine */
  hvd_engine engine = 0;
  OK(hvd_engine_init(comm, &engine));
  printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
