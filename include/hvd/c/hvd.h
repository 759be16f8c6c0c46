/* hvd/c/hvd.h: hvd for C, and for every language that can call C functions.
 *
 * The functions are in one source file, c/hvd.cpp, which a project compiles once as C++20 (or links as libhvd);
 * programs that call them need C99 or C++98 and only this header of hvd.
 *
 * Every function that can fail returns HVD_OK (0) or the kind of the error; hvd_last_error() has its sentence. No
 * exception and no signal leaves a function. Objects are numbers; a number that was freed, never made, or is of another
 * kind is an error, not a crash. A call on a communicator from a second thread while one is in a call (except hvd_rank
 * and hvd_size), and a call in a forked child, are errors (HVD_INVALID_ARGUMENT). The C++ functions of the same names
 * document the results and costs of the operations (docs/concepts.md); a call costs at most some nanoseconds more.
 */
#ifndef HVD_C_HVD_H
#define HVD_C_HVD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A library with a private copy of c/hvd.cpp compiles it with -DHVD_API= and -fvisibility=hidden. */
#if defined(HVD_API)
#elif defined(__GNUC__)
#define HVD_API __attribute__((visibility("default")))
#else
#define HVD_API
#endif

/* Grows when programs compiled with an older header could not work with a newer library; hvd_init compares. */
#define HVD_ABI_VERSION 1

/* The kind of an error (hvd::error_kind, plus 1). */
enum {
  HVD_OK = 0,
  HVD_INVALID_ARGUMENT = 1, /* this call can never work as written; the group is usable */
  HVD_MISMATCH = 2,         /* ranks disagree on what they are doing */
  HVD_PEER_LOST = 3,        /* another process of the group died or left; the communicator is finished */
  HVD_TIMEOUT = 4,          /* a peer did not answer before the deadline; the communicator is finished */
  HVD_NO_MEMORY = 5,        /* memory could not be reserved */
  HVD_UNSUPPORTED = 6,      /* the transport or the operation cannot do this */
  HVD_SYSTEM = 7,           /* the operating system refused something */
  HVD_ABORTED = 8           /* another rank failed in the middle of a collective; the communicator is finished */
};

/* Element types (hvd::dtype). */
enum {
  HVD_INT8 = 0,
  HVD_UINT8 = 1,
  HVD_INT16 = 2,
  HVD_UINT16 = 3,
  HVD_INT32 = 4,
  HVD_UINT32 = 5,
  HVD_INT64 = 6,
  HVD_UINT64 = 7,
  HVD_FLOAT16 = 8,
  HVD_BFLOAT16 = 9,
  HVD_FLOAT32 = 10,
  HVD_FLOAT64 = 11,
  HVD_BOOL = 12,
  HVD_COMPLEX64 = 13, /* two floats */
  HVD_COMPLEX128 = 14 /* two doubles */
};

/* Reductions (hvd::reduce_op), as Horovod numbers them. */
enum { HVD_AVERAGE = 0, HVD_SUM = 1, HVD_ADASUM = 2, HVD_MIN = 3, HVD_MAX = 4, HVD_PRODUCT = 5 };

typedef int64_t hvd_comm;   /* a group of ranks, seen from this one; 0 is none */
typedef int64_t hvd_engine; /* named operations in the background; 0 is none */
typedef int64_t hvd_handle; /* an operation in flight; 0 is none */

/* The sentence of this thread's last failed call, and the rank at fault (-1: none); valid until its next failure. */
HVD_API const char* hvd_last_error(void);
HVD_API int hvd_last_error_rank(void);
/* "0.1.0" */
HVD_API const char* hvd_version(void);
/* Bytes of an element; 0 for an invalid type. */
HVD_API size_t hvd_size_of(int dtype);

/* ---- groups of ranks --------------------------------------------------------------------------------------------- */

/* Joins the job that the environment describes: HVD_JOB, HOROVOD_RANK and HOROVOD_SIZE, or the variables of torchrun,
 * mpiexec or srun; rank 0 of 1 if none are set. `abi` is HVD_ABI_VERSION. `transport`: "shm", the ranks are processes
 * of this host; "mpi", the ranks of an MPI (if c/hvd.cpp is compiled with HVD_C_MPI); "tcp", ranks that hvdrun has
 * started on several hosts without an MPI; "auto", "shm" if all ranks are on one host and otherwise "mpi", or "tcp" in a
 * library without it; NULL: the variable HVD_TRANSPORT, or else "auto". Collective. */
HVD_API int hvd_init(int abi, const char* transport, hvd_comm* comm);
/* Runs f(comm, user) in np child processes, each a rank, and waits for them. `exit_code` gets 0 if f returned 0 in all;
 * otherwise 128 + signal for the lowest rank that was killed, or else the code of the lowest rank that failed. Call it
 * before the process starts threads. */
HVD_API int hvd_fork_run(int abi, int np, int (*f)(hvd_comm comm, void* user), void* user, int* exit_code);
/* A group of the ranks with the same color, ordered by key; collective. color < 0: this rank gets no group (0). */
HVD_API int hvd_split(hvd_comm comm, int color, int key, hvd_comm* part);
/* The group of the ranks that are left, in their order, when comm has lost some: each of them calls it after
 * HVD_PEER_LOST or HVD_ABORTED. Free comm as usual. HVD_UNSUPPORTED on transports other than "shm". */
HVD_API int hvd_without_lost(hvd_comm comm, hvd_comm* next);
/* Leaves the group, and frees its memory from hvd_alloc_shared; engines over it live on. Freeing 0 does nothing.
 * Remaining groups are freed when the process exits. */
HVD_API int hvd_free(hvd_comm comm);

/* -1, with an error, if comm is not a communicator. */
HVD_API int hvd_rank(hvd_comm comm);
HVD_API int hvd_size(hvd_comm comm);

/* `bytes` of memory that the ranks of one host share, zero at first: collectives on it copy less. `bytes` is the same
 * on all ranks. Collective; hvd_free_shared is not. If the transport has no such memory: private memory, with the same
 * results. */
HVD_API int hvd_alloc_shared(hvd_comm comm, size_t bytes, void** memory);
HVD_API int hvd_free_shared(hvd_comm comm, void* memory);

/* ---- collectives -------------------------------------------------------------------------------------------------
 * `count` is in elements; in == out is in place if the C++ function documents it. NULL is allowed with count 0, and if
 * a rank neither reads nor writes the buffer. */

HVD_API int hvd_barrier(hvd_comm comm);
HVD_API int hvd_allreduce(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int op);
/* Inputs times prescale, the result times postscale. */
HVD_API int hvd_allreduce_scaled(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int op,
                                 double prescale, double postscale);
HVD_API int hvd_reduce(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int op, int root);
HVD_API int hvd_scan(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int op);
/* Rank 0 needs an output, too, and leaves it unchanged. */
HVD_API int hvd_exscan(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int op);
HVD_API int hvd_broadcast(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int root);
/* `out` has size x count elements. */
HVD_API int hvd_allgather(hvd_comm comm, const void* in, void* out, size_t count, int dtype);
HVD_API int hvd_gather(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int root);
/* `in` has size x count elements. */
HVD_API int hvd_scatter(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int root);
HVD_API int hvd_reduce_scatter(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int op);
/* Both have size x count elements. */
HVD_API int hvd_alltoall(hvd_comm comm, const void* in, void* out, size_t count, int dtype);
/* counts[r] elements of, or for, rank r: `size` entries, the same on all ranks. */
HVD_API int hvd_allgather_v(hvd_comm comm, const void* in, void* out, const size_t* counts, int dtype);
HVD_API int hvd_gather_v(hvd_comm comm, const void* in, void* out, const size_t* counts, int dtype, int root);
HVD_API int hvd_scatter_v(hvd_comm comm, const void* in, void* out, const size_t* counts, int dtype, int root);
HVD_API int hvd_reduce_scatter_v(hvd_comm comm, const void* in, void* out, const size_t* counts, int dtype, int op);
/* Elements for each rank and from each rank. */
HVD_API int hvd_alltoall_v(hvd_comm comm, const void* in, void* out, const size_t* send, const size_t* receive,
                           int dtype);
HVD_API int hvd_send(hvd_comm comm, const void* buffer, size_t count, int dtype, int peer);
HVD_API int hvd_recv(hvd_comm comm, void* buffer, size_t count, int dtype, int peer);

/* A tensor of a list. `wire`: the type in which it travels, HVD_FLOAT16 or HVD_BFLOAT16 for float32, HVD_FLOAT32 for
 * float64; 0: its own. In the engine 0: there hvd_submit has the type of the whole list. */
typedef struct hvd_tensor {
  const void* in;
  void* out;
  size_t count;
  int dtype;
  int wire;
} hvd_tensor;

/* Many tensors of any types in one collective. */
HVD_API int hvd_allreduce_list(hvd_comm comm, const hvd_tensor* tensors, size_t n, int op);
HVD_API int hvd_broadcast_list(hvd_comm comm, const hvd_tensor* tensors, size_t n, int root);

/* ---- the engine: operations by name, submitted in any order ------------------------------------------------------ */

/* Collective over comm. The engine may be called from any thread. */
HVD_API int hvd_engine_init(hvd_comm comm, hvd_engine* engine);
/* Goes on over another group, for instance of hvd_without_lost; collective over it. Operations in flight end with the
 * loss, names and process sets start again, counters and the timeline go on. If it fails, call it again. */
HVD_API int hvd_engine_continue_over(hvd_engine engine, hvd_comm comm);
/* Operations in flight end with HVD_ABORTED. Freeing 0 does nothing. */
HVD_API int hvd_engine_free(hvd_engine engine);
/* A group of some ranks with its own names; *process_set is its number, from 1. Collective over all ranks. */
HVD_API int hvd_engine_add_process_set(hvd_engine engine, const int* ranks, size_t n, int* process_set);
HVD_API int hvd_engine_remove_process_set(hvd_engine engine, int process_set);

/* Memory for gradients. If ranks have common memory, an allreduce of data in it, in place and at the same offset on all
 * ranks, copies nothing. Zero at first; lives as long as the engine. Collective. */
HVD_API int hvd_engine_alloc_bucket(hvd_engine engine, size_t bytes, void** memory);

/* The options of a submission; NULL is {0, 0, 0}. */
typedef struct hvd_submit {
  int process_set; /* 0: all ranks */
  int priority;    /* of what is ready at the same time, higher ones run first */
  int wire;        /* the type in which wider floating-point tensors travel; 0: their own */
} hvd_submit;

/* Each returns at once; the memory belongs to the engine until the handle is done. Every handle must be released. A
 * name can be submitted again once its handle was waited for, polled as done, or released. Before that it is refused,
 * on all ranks that make the same calls. After that the new operation begins when the previous one has ended. */
HVD_API int hvd_engine_allreduce(hvd_engine engine, const char* name, const void* in, void* out, size_t count,
                                 int dtype, int op, const hvd_submit* how, hvd_handle* handle);
HVD_API int hvd_engine_allreduce_list(hvd_engine engine, const char* name, const hvd_tensor* tensors, size_t n, int op,
                                      const hvd_submit* how, hvd_handle* handle);
HVD_API int hvd_engine_broadcast(hvd_engine engine, const char* name, const void* in, void* out, size_t count,
                                 int dtype, int root, const hvd_submit* how, hvd_handle* handle);
/* The results of these three are the handle's output. Ranks may pass different counts to allgather; reduce_scatter
 * gives the first ranks one element more if the elements do not divide evenly; `splits`: elements for each rank, NULL
 * for equal parts. */
HVD_API int hvd_engine_allgather(hvd_engine engine, const char* name, const void* in, size_t count, int dtype,
                                 const hvd_submit* how, hvd_handle* handle);
HVD_API int hvd_engine_reduce_scatter(hvd_engine engine, const char* name, const void* in, size_t count, int dtype,
                                      int op, const hvd_submit* how, hvd_handle* handle);
HVD_API int hvd_engine_alltoall(hvd_engine engine, const char* name, const void* in, size_t count, int dtype,
                                const size_t* splits, const hvd_submit* how, hvd_handle* handle);
HVD_API int hvd_engine_barrier(hvd_engine engine, const char* name, const hvd_submit* how, hvd_handle* handle);
/* This rank has nothing more to submit until all ranks have joined. */
HVD_API int hvd_engine_join(hvd_engine engine, hvd_handle* handle);

/* Waits until it is done; returns its error, or HVD_TIMEOUT after `seconds` (negative: no limit), and then it stays in
 * flight. */
HVD_API int hvd_wait(hvd_handle handle, double seconds);
/* *done becomes 1 if it is done, with or without an error. */
HVD_API int hvd_poll(hvd_handle handle, int* done);
/* The result of an allgather, reduce_scatter or alltoall that is done: its address and its number of elements. It lives
 * until the handle is released. */
HVD_API int hvd_output(hvd_handle handle, const void** data, size_t* count);
/* Of an alltoall that is done: the elements from each rank, `size` entries (of the process set, in its order). */
HVD_API int hvd_received_splits(hvd_handle handle, size_t* counts);
/* Of a join that is done: the rank that joined last. */
HVD_API int hvd_last_joined(hvd_handle handle, int* rank);
/* Forgets the handle; the operation goes on. Releasing 0 does nothing. */
HVD_API int hvd_release(hvd_handle handle);

#ifdef __cplusplus
}
#endif

#endif
