/* tests/c/misuse.c: what must fail, and how: an error with a sentence, no crash, and a group that is usable afterwards.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BAD HVD_INVALID_ARGUMENT
#define ABI HVD_ABI_VERSION

static float x[8], y[8];

/* Every function that takes a communicator, with one that is none. */
static void no_communicator(hvd_comm none, const char* word) {
  size_t counts[4] = {1, 1, 1, 1};
  hvd_comm part = 0;
  hvd_engine engine = 0;
  void* memory = NULL;
  const hvd_tensor one = {x, y, 1, HVD_FLOAT32, HVD_FLOAT32};
  REFUSED(hvd_barrier(none), BAD, word);
  REFUSED(hvd_barrier(none), BAD, "barrier");
  REFUSED(hvd_allreduce(none, x, y, 1, HVD_FLOAT32, HVD_SUM), BAD, word);
  REFUSED(hvd_allreduce(none, x, y, 1, HVD_FLOAT32, HVD_SUM), BAD, "allreduce");
  REFUSED(hvd_allreduce_scaled(none, x, y, 1, HVD_FLOAT32, HVD_SUM, 1, 1), BAD, word);
  REFUSED(hvd_reduce(none, x, y, 1, HVD_FLOAT32, HVD_SUM, 0), BAD, word);
  REFUSED(hvd_scan(none, x, y, 1, HVD_FLOAT32, HVD_SUM), BAD, word);
  REFUSED(hvd_exscan(none, x, y, 1, HVD_FLOAT32, HVD_SUM), BAD, word);
  REFUSED(hvd_broadcast(none, x, y, 1, HVD_FLOAT32, 0), BAD, word);
  REFUSED(hvd_allgather(none, x, y, 1, HVD_FLOAT32), BAD, word);
  REFUSED(hvd_allgather_v(none, x, y, counts, HVD_FLOAT32), BAD, word);
  REFUSED(hvd_gather(none, x, y, 1, HVD_FLOAT32, 0), BAD, word);
  REFUSED(hvd_gather_v(none, x, y, counts, HVD_FLOAT32, 0), BAD, word);
  REFUSED(hvd_scatter(none, x, y, 1, HVD_FLOAT32, 0), BAD, word);
  REFUSED(hvd_scatter_v(none, x, y, counts, HVD_FLOAT32, 0), BAD, word);
  REFUSED(hvd_reduce_scatter(none, x, y, 1, HVD_FLOAT32, HVD_SUM), BAD, word);
  REFUSED(hvd_reduce_scatter_v(none, x, y, counts, HVD_FLOAT32, HVD_SUM), BAD, word);
  REFUSED(hvd_alltoall(none, x, y, 1, HVD_FLOAT32), BAD, word);
  REFUSED(hvd_alltoall_v(none, x, y, counts, counts, HVD_FLOAT32), BAD, word);
  REFUSED(hvd_send(none, x, 1, HVD_FLOAT32, 0), BAD, word);
  REFUSED(hvd_recv(none, x, 1, HVD_FLOAT32, 0), BAD, word);
  REFUSED(hvd_allreduce_list(none, &one, 1, HVD_SUM), BAD, word);
  REFUSED(hvd_broadcast_list(none, &one, 1, 0), BAD, word);
  REFUSED(hvd_split(none, 0, 0, &part), BAD, word);
  REFUSED(hvd_without_lost(none, &part), BAD, word);
  REFUSED(hvd_alloc_shared(none, 8, &memory), BAD, word);
  REFUSED(hvd_free_shared(none, x), BAD, word);
  REFUSED(hvd_engine_init(none, &engine), BAD, word);
  REFUSED(hvd_engine_continue_over(engine, none), BAD, word);
  CHECK(hvd_rank(none) == -1 && strstr(hvd_last_error(), word) != NULL);
  CHECK(hvd_size(none) == -1 && strstr(hvd_last_error(), word) != NULL);
  if (none != 0) REFUSED(hvd_free(none), BAD, word);
}

static void no_engine(hvd_engine none, const char* word) {
  hvd_handle h = 0;
  int set = 0, rank = 0;
  const hvd_tensor one = {x, y, 1, HVD_FLOAT32, HVD_FLOAT32};
  REFUSED(hvd_engine_allreduce(none, "a", x, y, 1, HVD_FLOAT32, HVD_SUM, NULL, &h), BAD, word);
  REFUSED(hvd_engine_allreduce(none, "a", x, y, 1, HVD_FLOAT32, HVD_SUM, NULL, &h), BAD, "allreduce");
  REFUSED(hvd_engine_allreduce_list(none, "a", &one, 1, HVD_SUM, NULL, &h), BAD, word);
  REFUSED(hvd_engine_broadcast(none, "a", x, y, 1, HVD_FLOAT32, 0, NULL, &h), BAD, word);
  REFUSED(hvd_engine_allgather(none, "a", x, 1, HVD_FLOAT32, NULL, &h), BAD, word);
  REFUSED(hvd_engine_reduce_scatter(none, "a", x, 1, HVD_FLOAT32, HVD_SUM, NULL, &h), BAD, word);
  REFUSED(hvd_engine_alltoall(none, "a", x, 1, HVD_FLOAT32, NULL, NULL, &h), BAD, word);
  REFUSED(hvd_engine_barrier(none, "a", NULL, &h), BAD, word);
  REFUSED(hvd_engine_join(none, &h), BAD, word);
  REFUSED(hvd_engine_add_process_set(none, &rank, 1, &set), BAD, word);
  void* memory = NULL;
  REFUSED(hvd_engine_alloc_bucket(none, 8, &memory), BAD, word);
  REFUSED(hvd_engine_remove_process_set(none, 1), BAD, word);
  if (none != 0) REFUSED(hvd_engine_free(none), BAD, word);
}

static void no_handle(hvd_handle none, const char* word) {
  const void* data = NULL;
  size_t count = 0;
  int done = 0;
  REFUSED(hvd_wait(none, 0), BAD, word);
  REFUSED(hvd_wait(none, 0), BAD, "wait");
  REFUSED(hvd_poll(none, &done), BAD, word);
  REFUSED(hvd_output(none, &data, &count), BAD, word);
  if (none != 0) REFUSED(hvd_release(none), BAD, word);
}

static void wild_numbers(void) {
  const int64_t wild[] = {1, -1, 42, INT64_MAX, INT64_MIN, INT64_C(1) << 56, INT64_C(2) << 56, INT64_C(3) << 56};
  for (size_t i = 0; i < sizeof wild / sizeof *wild; ++i) {
    no_communicator(wild[i], "communicator");
    no_engine(wild[i], "engine");
    no_handle(wild[i], "handle");
  }
  no_communicator(0, "is 0, which is never valid");
  no_engine(0, "is 0, which is never valid");
  no_handle(0, "is 0, which is never valid");
}

/* All ranks make the same mistake. */
static void arguments(hvd_comm comm) {
  const int rank = hvd_rank(comm), size = hvd_size(comm);
  char where[32];
  snprintf(where, sizeof where, "on rank %d of %d: ", rank, size);
  const int wrong_types[] = {-1, 15, 99, 256 + HVD_FLOAT32, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < sizeof wrong_types / sizeof *wrong_types; ++i) {
    const int t = wrong_types[i];
    size_t counts[4] = {1, 1, 1, 1};
    const hvd_tensor list = {x, y, 1, t, t}, wire = {x, y, 1, HVD_FLOAT32, t};
    REFUSED(hvd_allreduce(comm, x, y, 1, t, HVD_SUM), BAD, "allreduce on rank ");
    REFUSED(hvd_allreduce(comm, x, y, 1, t, HVD_SUM), BAD, where);
    REFUSED(hvd_allreduce(comm, x, y, 1, t, HVD_ADASUM), BAD, where);
    REFUSED(hvd_reduce(comm, x, y, 1, t, HVD_SUM, 0), BAD, "reduce on rank ");
    REFUSED(hvd_scan(comm, x, y, 1, t, HVD_SUM), BAD, "scan on rank ");
    REFUSED(hvd_exscan(comm, x, y, 1, t, HVD_SUM), BAD, "exscan on rank ");
    REFUSED(hvd_broadcast(comm, x, y, 1, t, 0), BAD, "broadcast on rank ");
    REFUSED(hvd_allgather(comm, x, y, 1, t), BAD, "allgather on rank ");
    REFUSED(hvd_gather(comm, x, y, 1, t, 0), BAD, "gather on rank ");
    REFUSED(hvd_scatter(comm, x, y, 1, t, 0), BAD, "scatter on rank ");
    REFUSED(hvd_reduce_scatter(comm, x, y, 1, t, HVD_SUM), BAD, "reduce_scatter on rank ");
    REFUSED(hvd_alltoall(comm, x, y, 1, t), BAD, "alltoall on rank ");
    REFUSED(hvd_allgather_v(comm, x, y, counts, t), BAD, "allgather_v on rank ");
    REFUSED(hvd_alltoall_v(comm, x, y, counts, counts, t), BAD, "alltoall_v on rank ");
    REFUSED(hvd_send(comm, x, 1, t, 0), BAD, "send on rank ");
    REFUSED(hvd_recv(comm, x, 1, t, 0), BAD, "recv on rank ");
    REFUSED(hvd_allreduce_list(comm, &list, 1, HVD_SUM), BAD, where);
    REFUSED(hvd_allreduce_list(comm, &wire, 1, HVD_SUM), BAD, where);
    REFUSED(hvd_broadcast_list(comm, &list, 1, 0), BAD, where);
    REFUSED(hvd_broadcast_list(comm, &list, SIZE_MAX, 0), BAD, "addressed");
  }
  const int wrong_ops[] = {-1, 6, 256 + HVD_SUM, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < sizeof wrong_ops / sizeof *wrong_ops; ++i) {
    const int op = wrong_ops[i];
    const hvd_tensor list = {x, y, 1, HVD_FLOAT32, HVD_FLOAT32};
    REFUSED(hvd_allreduce(comm, x, y, 1, HVD_FLOAT32, op), BAD, where);
    REFUSED(hvd_reduce(comm, x, y, 1, HVD_FLOAT32, op, 0), BAD, where);
    REFUSED(hvd_scan(comm, x, y, 1, HVD_FLOAT32, op), BAD, where);
    REFUSED(hvd_reduce_scatter(comm, x, y, 1, HVD_FLOAT32, op), BAD, where);
    REFUSED(hvd_allreduce_list(comm, &list, 1, op), BAD, where);
  }
  const int wrong_roots[] = {-1, size, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < sizeof wrong_roots / sizeof *wrong_roots; ++i) {
    const int root = wrong_roots[i];
    size_t counts[4] = {1, 1, 1, 1};
    const hvd_tensor list = {x, y, 1, HVD_FLOAT32, HVD_FLOAT32};
    REFUSED(hvd_reduce(comm, x, y, 1, HVD_FLOAT32, HVD_SUM, root), BAD, "root ");
    REFUSED(hvd_broadcast(comm, x, y, 1, HVD_FLOAT32, root), BAD, "root ");
    REFUSED(hvd_gather(comm, x, y, 1, HVD_FLOAT32, root), BAD, "root ");
    REFUSED(hvd_scatter(comm, x, y, 1, HVD_FLOAT32, root), BAD, "root ");
    REFUSED(hvd_gather_v(comm, x, y, counts, HVD_FLOAT32, root), BAD, "root ");
    REFUSED(hvd_scatter_v(comm, x, y, counts, HVD_FLOAT32, root), BAD, "root ");
    REFUSED(hvd_broadcast_list(comm, &list, 1, root), BAD, "root ");
    REFUSED(hvd_send(comm, x, 1, HVD_FLOAT32, root), BAD, "peer ");
    REFUSED(hvd_recv(comm, x, 1, HVD_FLOAT32, root), BAD, "peer ");
  }

  /* null */
  size_t counts[4] = {1, 1, 1, 1};
  REFUSED(hvd_allreduce(comm, NULL, y, 1, HVD_FLOAT32, HVD_SUM), BAD, "input is null");
  REFUSED(hvd_allreduce(comm, x, NULL, 1, HVD_FLOAT32, HVD_SUM), BAD, "output is null");
  REFUSED(hvd_scan(comm, x, NULL, 1, HVD_FLOAT32, HVD_SUM), BAD, "output is null");
  REFUSED(hvd_reduce(comm, NULL, y, 1, HVD_FLOAT32, HVD_SUM, 0), BAD, "input is null");
  REFUSED(hvd_broadcast(comm, x, NULL, 1, HVD_FLOAT32, 0), BAD, "output is null");
  REFUSED(hvd_allgather(comm, NULL, y, 1, HVD_FLOAT32), BAD, "input is null");
  REFUSED(hvd_gather(comm, NULL, y, 1, HVD_FLOAT32, 0), BAD, "input is null");
  REFUSED(hvd_scatter(comm, x, NULL, 1, HVD_FLOAT32, 0), BAD, "output is null");
  REFUSED(hvd_reduce_scatter(comm, NULL, y, 1, HVD_FLOAT32, HVD_SUM), BAD, "input is null");
  REFUSED(hvd_alltoall(comm, NULL, y, 1, HVD_FLOAT32), BAD, "input is null");
  REFUSED(hvd_allgather_v(comm, x, y, NULL, HVD_FLOAT32), BAD, "counts is null");
  REFUSED(hvd_gather_v(comm, x, y, NULL, HVD_FLOAT32, 0), BAD, "counts is null");
  REFUSED(hvd_scatter_v(comm, x, y, NULL, HVD_FLOAT32, 0), BAD, "counts is null");
  REFUSED(hvd_reduce_scatter_v(comm, x, y, NULL, HVD_FLOAT32, HVD_SUM), BAD, "counts is null");
  REFUSED(hvd_alltoall_v(comm, x, y, NULL, counts, HVD_FLOAT32), BAD, "send is null");
  REFUSED(hvd_alltoall_v(comm, x, y, counts, NULL, HVD_FLOAT32), BAD, "receive is null");
  REFUSED(hvd_send(comm, NULL, 1, HVD_FLOAT32, 0), BAD, "buffer is null");
  REFUSED(hvd_recv(comm, NULL, 1, HVD_FLOAT32, 0), BAD, "buffer is null");
  REFUSED(hvd_allreduce_list(comm, NULL, 3, HVD_SUM), BAD, "null");
  REFUSED(hvd_broadcast_list(comm, NULL, 3, 0), BAD, "null");
  const hvd_tensor empty = {NULL, y, 1, HVD_FLOAT32, HVD_FLOAT32};
  REFUSED(hvd_allreduce_list(comm, &empty, 1, HVD_SUM), BAD, "tensor 0 is null");
  REFUSED(hvd_split(comm, 0, 0, NULL), BAD, "split on rank ");
  REFUSED(hvd_without_lost(comm, NULL), BAD, "without_lost");
  REFUSED(hvd_engine_continue_over(0, comm), BAD, "the engine is 0");
  REFUSED(hvd_alloc_shared(comm, 8, NULL), BAD, "alloc_shared on rank ");
  REFUSED(hvd_engine_init(comm, NULL), BAD, "engine_init");

  /* numbers of elements that wrap around, and buffers that overlap */
  const size_t huge[] = {SIZE_MAX, SIZE_MAX / 4 + 2, (size_t)1 << 62};
  for (size_t i = 0; i < sizeof huge / sizeof *huge; ++i) {
    size_t sum[4] = {huge[i], huge[i], 1, 1};
    REFUSED(hvd_allreduce(comm, x, y, huge[i], HVD_FLOAT32, HVD_SUM), BAD, "addressed");
    REFUSED(hvd_broadcast(comm, x, y, huge[i], HVD_FLOAT32, 0), BAD, "addressed");
    REFUSED(hvd_allgather(comm, x, y, huge[i], HVD_FLOAT32), BAD, "addressed");
    REFUSED(hvd_gather(comm, x, y, huge[i], HVD_FLOAT32, 0), BAD, "addressed");
    REFUSED(hvd_scatter(comm, x, y, huge[i], HVD_FLOAT32, 0), BAD, "addressed");
    REFUSED(hvd_reduce_scatter(comm, x, y, huge[i], HVD_FLOAT32, HVD_SUM), BAD, "addressed");
    REFUSED(hvd_alltoall(comm, x, y, huge[i], HVD_FLOAT32), BAD, "addressed");
    REFUSED(hvd_allgather_v(comm, x, y, sum, HVD_FLOAT32), BAD, "addressed");
    REFUSED(hvd_send(comm, x, huge[i], HVD_FLOAT32, 0), BAD, "addressed");
  }
  REFUSED(hvd_allreduce(comm, x, x + 1, 4, HVD_FLOAT32, HVD_SUM), BAD, "overlap");
  REFUSED(hvd_alltoall_v(comm, x, x, counts, counts, HVD_FLOAT32), BAD, "overlap");

  /* what is not defined */
  REFUSED(hvd_allreduce(comm, x, y, 1, HVD_BOOL, HVD_SUM), BAD, "sum of bool is not defined");
  REFUSED(hvd_allreduce(comm, x, y, 1, HVD_COMPLEX64, HVD_MIN), BAD, "complex numbers have no order");
  REFUSED(hvd_allreduce_scaled(comm, x, y, 1, HVD_BOOL, HVD_MAX, 2, 1), BAD, "cannot be scaled");
  REFUSED(hvd_scan(comm, x, y, 1, HVD_FLOAT32, HVD_AVERAGE), BAD, "no average");
  REFUSED(hvd_exscan(comm, x, y, 1, HVD_FLOAT32, HVD_AVERAGE), BAD, "no average");
  REFUSED(hvd_reduce(comm, x, y, 1, HVD_FLOAT32, HVD_ADASUM, 0), BAD, "adasum");
  const hvd_tensor narrow = {x, y, 1, HVD_INT32, HVD_FLOAT16};
  REFUSED(hvd_allreduce_list(comm, &narrow, 1, HVD_SUM), BAD, "cannot have the wire type");
  REFUSED(hvd_free_shared(comm, x), BAD, "free_shared");
  CHECK(hvd_last_error_rank() == -1);
  REFUSED(hvd_allreduce(comm, NULL, y, 1, HVD_FLOAT32, HVD_SUM), BAD, where);
  CHECK(hvd_last_error_rank() == rank);
}

static void engine_arguments(hvd_comm comm) {
  const int rank = hvd_rank(comm), size = hvd_size(comm);
  hvd_engine e = 0;
  OK(hvd_engine_init(comm, &e));
  hvd_handle h = 99;
  REFUSED(hvd_engine_allreduce(e, NULL, x, y, 1, HVD_FLOAT32, HVD_SUM, NULL, &h), BAD, "name is null");
  CHECK(h == 0);
  REFUSED(hvd_engine_allreduce(e, "", x, y, 1, HVD_FLOAT32, HVD_SUM, NULL, &h), BAD, "name is empty");
  REFUSED(hvd_engine_allreduce(e, "a", x, y, 1, HVD_FLOAT32, HVD_SUM, NULL, NULL), BAD, "handle is null");
  REFUSED(hvd_engine_allreduce(e, "a", NULL, y, 1, HVD_FLOAT32, HVD_SUM, NULL, &h), BAD, "null");
  REFUSED(hvd_engine_allreduce(e, "a", x, NULL, 1, HVD_FLOAT32, HVD_SUM, NULL, &h), BAD, "output is null");
  REFUSED(hvd_engine_allreduce(e, "a", x, y, 1, 256 + HVD_FLOAT32, HVD_SUM, NULL, &h), BAD, "dtype 266");
  REFUSED(hvd_engine_allreduce(e, "a", x, y, 1, HVD_FLOAT32, 256 + HVD_SUM, NULL, &h), BAD, "op 257");
  REFUSED(hvd_engine_allreduce(e, "a", x, y, 1, HVD_BOOL, HVD_SUM, NULL, &h), BAD, "not defined");
  REFUSED(hvd_engine_allreduce(e, "a", x, x + 1, 3, HVD_FLOAT32, HVD_SUM, NULL, &h), BAD, "overlap");
  REFUSED(hvd_engine_allreduce(e, "a", x, y, SIZE_MAX / 2, HVD_FLOAT32, HVD_SUM, NULL, &h), BAD, "addressed");
  const hvd_submit no_set = {7, 0, 0}, no_wire = {0, 0, 256 + HVD_FLOAT16}, int_wire = {0, 0, HVD_UINT8};
  REFUSED(hvd_engine_allreduce(e, "a", x, y, 1, HVD_FLOAT32, HVD_SUM, &no_set, &h), BAD, "no process set 7");
  REFUSED(hvd_engine_allreduce(e, "a", x, y, 1, HVD_FLOAT32, HVD_SUM, &no_set, &h), BAD, "allreduce");
  REFUSED(hvd_engine_allreduce(e, "a", x, y, 1, HVD_FLOAT32, HVD_SUM, &no_wire, &h), BAD, "wire 264");
  REFUSED(hvd_engine_allreduce(e, "a", x, y, 1, HVD_FLOAT32, HVD_SUM, &int_wire, &h), BAD, "uint8");
  const hvd_tensor wire = {x, y, 1, HVD_FLOAT32, HVD_FLOAT16};
  REFUSED(hvd_engine_allreduce_list(e, "a", &wire, 1, HVD_SUM, NULL, &h), BAD, "wire");
  REFUSED(hvd_engine_allreduce_list(e, "a", NULL, 2, HVD_SUM, NULL, &h), BAD, "null");
  REFUSED(hvd_engine_allreduce_list(e, "a", NULL, 0, HVD_SUM, NULL, &h), BAD, "no tensors");
  REFUSED(hvd_engine_broadcast(e, "a", x, x, 1, HVD_FLOAT32, size, NULL, &h), BAD, "root");
  REFUSED(hvd_engine_reduce_scatter(e, "a", x, 4, HVD_FLOAT32, HVD_ADASUM, NULL, &h), HVD_UNSUPPORTED, "adasum");
  const size_t more[4] = {2, 2, 2, 2};
  REFUSED(hvd_engine_alltoall(e, "a", x, 1, HVD_FLOAT32, more, NULL, &h), BAD, "splits");
  REFUSED(hvd_engine_alltoall(e, "a", x, 1, HVD_FLOAT32, more, &no_set, &h), BAD, "no process set 7");
  int set = 5, twice[2] = {0, 0}, nobody = size;
  REFUSED(hvd_engine_add_process_set(e, NULL, 1, &set), BAD, "ranks is null");
  REFUSED(hvd_engine_add_process_set(e, twice, SIZE_MAX, &set), BAD, "allowed: at most");
  REFUSED(hvd_engine_add_process_set(e, twice, 1, NULL), BAD, "process_set is null");
  REFUSED(hvd_engine_alloc_bucket(e, 8, NULL), BAD, "memory is null");
  REFUSED(hvd_engine_add_process_set(e, twice, 2, &set), BAD, "twice");
  REFUSED(hvd_engine_add_process_set(e, &nobody, 1, &set), BAD, "add_process_set");
  REFUSED(hvd_engine_add_process_set(e, NULL, 0, &set), BAD, "no ranks");
  REFUSED(hvd_engine_remove_process_set(e, 0), BAD, "process set 0");
  REFUSED(hvd_engine_remove_process_set(e, 9), BAD, "process set 9");
  REFUSED(hvd_engine_join(e, NULL), BAD, "handle is null");

  /* handles: not done yet (the last rank waits for the others), without output, null, released twice */
  const int late = rank == size - 1 && size > 1;
  if (late) OK(hvd_barrier(comm));
  OK(hvd_engine_allreduce(e, "late", x, x, 1, HVD_FLOAT32, HVD_MAX, NULL, &h));
  const void* data = NULL;
  size_t count = 0;
  int done = 7;
  if (!late && size > 1) {
    REFUSED(hvd_wait(h, 0.01), HVD_TIMEOUT, "wait");
    REFUSED(hvd_wait(h, 0), HVD_TIMEOUT, "late");
    REFUSED(hvd_output(h, &data, &count), BAD, "not done");
    OK(hvd_poll(h, &done));
    CHECK(done == 0);
    hvd_handle same = 0;
    REFUSED(hvd_engine_allreduce(e, "late", y, y, 1, HVD_FLOAT32, HVD_MAX, NULL, &same), BAD, "late");
    CHECK(same == 0);
    OK(hvd_barrier(comm));
  }
  REFUSED(hvd_wait(h, NAN), BAD, "not a number");
  OK(hvd_wait(h, INFINITY));
  REFUSED(hvd_output(h, &data, &count), BAD, "no output");
  REFUSED(hvd_output(h, NULL, &count), BAD, "data is null");
  REFUSED(hvd_output(h, &data, NULL), BAD, "count is null");
  int last = 0;
  REFUSED(hvd_received_splits(h, &count), BAD, "not an alltoall");
  REFUSED(hvd_received_splits(h, NULL), BAD, "counts is null");
  REFUSED(hvd_last_joined(h, &last), BAD, "not a join");
  REFUSED(hvd_last_joined(h, NULL), BAD, "rank is null");
  REFUSED(hvd_poll(h, NULL), BAD, "done is null");
  no_communicator(h, "is the number of a handle");
  no_engine(h, "is the number of a handle");
  no_handle(e, "is the number of an engine");
  no_communicator(e, "is the number of an engine");
  no_handle(comm, "is the number of a communicator");
  no_engine(comm, "is the number of a communicator");
  OK(hvd_release(h));
  no_handle(h, "no handle");
  hvd_handle again = 0; /* in the same slot */
  OK(hvd_engine_barrier(e, "again", NULL, &again));
  CHECK(again != h);
  no_handle(h, "no handle");
  OK(hvd_wait(again, -1));
  REFUSED(hvd_output(again, &data, &count), BAD, "no output");
  OK(hvd_release(again));

  /* ranks that submit different things under one name */
  if (size > 1) {
    OK(hvd_engine_allreduce(e, "different", x, x, rank == 0 ? 1 : 2, HVD_FLOAT32, HVD_SUM, NULL, &h));
    REFUSED(hvd_wait(h, -1), HVD_MISMATCH, "different");
    REFUSED(hvd_output(h, &data, &count), HVD_MISMATCH, "different");
    OK(hvd_release(h));
  }

  /* in flight when the engine ends: only this rank has submitted it */
  char name[32];
  snprintf(name, sizeof name, "never.%d", rank);
  OK(hvd_engine_allreduce(e, name, y, y, 1, HVD_FLOAT32, HVD_SUM, NULL, &h));
  if (size > 1) OK(hvd_barrier(comm));
  OK(hvd_engine_free(e));
  const int code = hvd_wait(h, 30);
  CHECK(code == HVD_ABORTED || (code == HVD_PEER_LOST && size > 1) ||
        (code == HVD_OK && size == 1)); /* who was first */
  OK(hvd_release(h));
  no_engine(e, "no engine");
}

/* ---- threads ---- */

static hvd_comm shared_comm;
static hvd_engine shared_engine;
static int turn[2]; /* a pipe, by which rank 0 tells rank 1 to go on: the communicator is in use */

static void* barrier_of_another_thread(void* code) {
  *(int*)code = hvd_barrier(shared_comm);
  return NULL;
}

static void pause_ms(long ms) {
  const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

static void two_threads(hvd_comm comm) {
  if (hvd_size(comm) != 2) return;
  if (hvd_rank(comm) == 0) {
    shared_comm = comm;
    int code = -1;
    pthread_t other;
    CHECK(pthread_create(&other, NULL, barrier_of_another_thread, &code) == 0);
    /* It waits for rank 1 from when it has the communicator; freeing what is no memory waits for nobody. */
    int tries = 0;
    do {
      pause_ms(1);
      CHECK(hvd_free_shared(comm, x) == BAD);
    } while (strstr(hvd_last_error(), "another thread") == NULL && ++tries < 30000);
    REFUSED(hvd_barrier(comm), BAD, "another thread is in a call on this communicator");
    REFUSED(hvd_allreduce(comm, x, y, 1, HVD_FLOAT32, HVD_SUM), BAD, "allreduce: another thread");
    REFUSED(hvd_free(comm), BAD, "another thread");
    CHECK(hvd_rank(comm) == 0 && hvd_size(comm) == 2);

    const pid_t child = fork(); /* which has no such thread */
    if (child == 0) {
      failures = 0;
      REFUSED(hvd_barrier(comm), BAD, "forked");
      _exit(failures != 0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(write(turn[1], "x", 1) == 1);
    CHECK(pthread_join(other, NULL) == 0);
    CHECK(code == HVD_OK);
  } else {
    char go;
    CHECK(read(turn[0], &go, 1) == 1);
    OK(hvd_barrier(comm));
  }
  OK(hvd_barrier(comm));
}

/* Many threads use one engine, and handles, at the same time; another one frees what they use. */
enum { threads = 4, rounds = 200 };

static void* submit_and_wait(void* number) {
  int failed = 0;
  for (int i = 0; i < rounds; ++i) {
    char name[32];
    double value = 1;
    hvd_handle h = 0;
    snprintf(name, sizeof name, "thread.%d", *(int*)number);
    failed += hvd_engine_allreduce(shared_engine, name, &value, &value, 1, HVD_FLOAT64, HVD_SUM, NULL, &h) != HVD_OK;
    failed += hvd_wait(h, -1) != HVD_OK;
    failed += hvd_release(h) != HVD_OK;
    failed += hvd_release(h) != HVD_INVALID_ARGUMENT;
  }
  *(int*)number = failed;
  return NULL;
}

static void* submit_until_it_ends(void* code) {
  for (;;) {
    float value = 1;
    hvd_handle h = 0;
    *(int*)code = hvd_engine_allreduce(shared_engine, "until", &value, &value, 1, HVD_FLOAT32, HVD_SUM, NULL, &h);
    if (*(int*)code == HVD_OK) *(int*)code = hvd_wait(h, -1);
    hvd_release(h);
    if (*(int*)code != HVD_OK) return NULL;
  }
}

static void many_threads(hvd_comm comm) {
  OK(hvd_engine_init(comm, &shared_engine));
  pthread_t all[threads];
  int numbers[threads];
  for (int i = 0; i < threads; ++i) {
    numbers[i] = i;
    CHECK(pthread_create(&all[i], NULL, submit_and_wait, &numbers[i]) == 0);
  }
  for (int i = 0; i < threads; ++i) {
    CHECK(pthread_join(all[i], NULL) == 0);
    CHECK(numbers[i] == 0);
  }
  int code = -1;
  CHECK(pthread_create(&all[0], NULL, submit_until_it_ends, &code) == 0);
  pause_ms(20);
  OK(hvd_engine_free(shared_engine));
  CHECK(pthread_join(all[0], NULL) == 0);
  CHECK(code == HVD_ABORTED || code == HVD_PEER_LOST || code == HVD_INVALID_ARGUMENT);
}

/* ---- fork ---- */

/* Memory that the parent's threads hold looks lost in a forked child, where they do not run. */
static int in_forked_child = 0;
int __lsan_is_turned_off(void); /* LeakSanitizer asks it at the end of a process */
int __lsan_is_turned_off(void) { return in_forked_child; }

static void fork_child(hvd_comm comm) {
  hvd_engine e = 0;
  hvd_handle h = 0;
  void* memory = NULL;
  OK(hvd_engine_init(comm, &e));
  OK(hvd_alloc_shared(comm, 4096, &memory));
  OK(hvd_engine_barrier(e, "before", NULL, &h));
  OK(hvd_wait(h, -1));
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    in_forked_child = 1;
    failures = 0;
    no_communicator(comm, "forked");
    no_engine(e, "forked");
    no_handle(h, "forked");
    /* a group of its own */
    hvd_comm own = 0;
    hvd_engine own_engine = 0;
    float value = 3;
    OK(hvd_init(ABI, "shm", &own));
    CHECK(hvd_size(own) == 1);
    OK(hvd_engine_init(own, &own_engine));
    OK(hvd_engine_allreduce(own_engine, "own", &value, &value, 1, HVD_FLOAT32, HVD_SUM, NULL, &h));
    OK(hvd_wait(h, -1));
    CHECK(value == 3);
    fflush(NULL);
    if (failures != 0) _exit(1);
    exit(0); /* with all that runs at the end of a process */
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  OK(hvd_release(h));
  OK(hvd_engine_free(e));
  OK(hvd_barrier(comm));
  OK(hvd_free_shared(comm, memory));
}

static void usable(hvd_comm comm) {
  const int size = hvd_size(comm);
  int64_t sum = hvd_rank(comm) + 1;
  OK(hvd_allreduce(comm, &sum, &sum, 1, HVD_INT64, HVD_SUM));
  CHECK(sum == size * (size + 1) / 2);
}

/* With HVD_CHECK the other ranks learn that one has made a mistake, and nobody waits. */
static void one_wrong_rank(hvd_comm comm) {
  const int rank = hvd_rank(comm), size = hvd_size(comm);
  if (size == 1 || getenv("HVD_CHECK") == NULL) return;
  const int right = rank != size - 1;
  const hvd_tensor list = {x, y, 1, right ? HVD_FLOAT32 : 77, HVD_FLOAT32};
  size_t counts[4] = {1, 1, 1, 1};
  hvd_comm part = 0;
  CHECK(hvd_allreduce(comm, x, y, 1, right ? HVD_FLOAT32 : 77, HVD_SUM) == BAD);
  CHECK(hvd_allreduce(comm, x, y, 1, HVD_FLOAT32, right ? HVD_SUM : 77) == BAD);
  CHECK(hvd_allgather_v(comm, x, y, right ? counts : NULL, HVD_FLOAT32) == BAD);
  CHECK(hvd_allreduce_list(comm, &list, 1, HVD_SUM) == BAD);
  CHECK(hvd_split(comm, 0, 0, right ? &part : NULL) == BAD);
  CHECK(hvd_allreduce(comm, x, y, right ? 1 : 2, HVD_FLOAT32, HVD_SUM) == HVD_MISMATCH);
}

static int all_mistakes(hvd_comm comm, void* user) {
  (void)user;
  no_communicator(comm + 1, "communicator");
  arguments(comm);
  usable(comm);
  engine_arguments(comm);
  usable(comm);
  one_wrong_rank(comm);
  usable(comm);
  two_threads(comm);
  many_threads(comm);
  usable(comm);
  fork_child(comm);
  usable(comm);

  hvd_comm part = 0, next = 0;
  void* memory = NULL;
  OK(hvd_split(comm, 0, 0, &part));
  OK(hvd_alloc_shared(part, 64, &memory));
  OK(hvd_free(part));
  no_communicator(part, "no communicator");
  OK(hvd_split(comm, 0, 0, &next)); /* in the same slot */
  CHECK(next != part);
  no_communicator(part, "no communicator");
  usable(next);
  REFUSED(hvd_free_shared(next, memory), BAD, "free_shared");
  usable(comm);
  printf("rank %d of %d: %d checks, %d failures\n", hvd_rank(comm), hvd_size(comm), checks, failures);
  const int code = failures == 0 ? 0 : 1;
  if (hvd_rank(comm) == 0) hvd_free(comm); /* fork_run copes with it */
  return code;
}

static int ends_early(hvd_comm comm, void* user) {
  const int last = hvd_rank(comm) == hvd_size(comm) - 1;
  (void)user;
  if (last) return 0;
  REFUSED(hvd_allreduce(comm, x, y, 1, HVD_FLOAT32, HVD_SUM), HVD_PEER_LOST, "allreduce");
  CHECK(hvd_last_error_rank() == hvd_size(comm) - 1);
  REFUSED(hvd_barrier(comm), HVD_PEER_LOST, "barrier");
  return failures != 0;
}

int main(void) {
  hvd_comm comm = 55;
  int code = 0;
  CHECK(strcmp(hvd_last_error(), "") == 0 && hvd_last_error_rank() == -1);
  CHECK(pipe(turn) == 0);
  wild_numbers();
  REFUSED(hvd_init(ABI + 1, "shm", &comm), BAD, "init");
  CHECK(strstr(hvd_last_error(), "version 2") != NULL && strstr(hvd_last_error(), "version 1") != NULL);
  REFUSED(hvd_init(0, NULL, NULL), BAD, "version 0");
  REFUSED(hvd_init(ABI, NULL, NULL), BAD, "comm is null");
  REFUSED(hvd_init(ABI, "udp", &comm), BAD, "transport=\"udp\"");
  CHECK(comm == 0);
  REFUSED(hvd_init(ABI, "", &comm), BAD, "transport=\"\" is not a transport");
  setenv("HVD_TRANSPORT", "smoke", 1);
  REFUSED(hvd_init(ABI, NULL, &comm), BAD, "HVD_TRANSPORT=\"smoke\"");
  unsetenv("HVD_TRANSPORT");
  setenv("HOROVOD_RANK", "2", 1);
  setenv("HOROVOD_SIZE", "2", 1);
  REFUSED(hvd_init(ABI, NULL, &comm), BAD, "HOROVOD_RANK");
  unsetenv("HOROVOD_RANK");
  unsetenv("HOROVOD_SIZE");
  REFUSED(hvd_fork_run(ABI - 1, 2, all_mistakes, NULL, &code), BAD, "fork_run");
  REFUSED(hvd_fork_run(ABI, 2, NULL, NULL, &code), BAD, "f is null");
  REFUSED(hvd_fork_run(ABI, 2, all_mistakes, NULL, NULL), BAD, "exit_code is null");
  REFUSED(hvd_fork_run(ABI, 0, all_mistakes, NULL, &code), BAD, "fork_run: np");
  REFUSED(hvd_fork_run(ABI, -1, all_mistakes, NULL, &code), BAD, "fork_run: np");

  const int sizes[] = {1, 2, 4};
  for (int checked = 0; checked < 2; ++checked) {
    if (checked) setenv("HVD_CHECK", "1", 1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
      OK(hvd_fork_run(ABI, sizes[i], all_mistakes, NULL, &code));
      CHECK(code == 0);
    }
  }
  unsetenv("HVD_CHECK");
  OK(hvd_fork_run(ABI, 3, ends_early, NULL, &code));
  CHECK(code == 0);
  printf("%d checks, %d failures\n", checks, failures);
  return failures != 0;
}
