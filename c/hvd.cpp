// c/hvd.cpp: hvd for C (hvd/c/hvd.h). A project compiles this one file as C++20 and links it, with -pthread:
//   g++ -std=c++20 -O2 -I include -c c/hvd.cpp
// -DHVD_C_MPI, with the include path of an MPI, adds the transport "mpi".
#include <hvd/c/hvd.h>

#include "collectives.hpp"
#include "communicator.hpp"
#include "errors.hpp"
#include "objects.hpp"
#include "requests.hpp"

#include <hvd/dtype.hpp>
#include <hvd/hierarchical.hpp>
#include <hvd/launch.hpp>
#include <hvd/transport/shm.hpp>
#include <hvd/transport/tcp.hpp>
#include <hvd/version.hpp>
#ifdef HVD_C_MPI
#include <hvd/transport/mpi.hpp>
#endif

#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::c {
namespace {

/// Calls f(communicator&) while no other thread can use it.
template <class F>
int on(hvd_comm number, std::string_view function, const F& f) noexcept {
  return guarded(function, [&] {
    const table::taken held(number, kind::communicator, function);
    f(static_cast<communicator&>(held.what()));
  });
}

void end_all() noexcept;

hvd_comm publish(any_transport made) {
  static const int registered = std::atexit([] { end_all(); });
  static_cast<void>(registered);
  const int rank = made.rank(), size = made.size();
  return table::all().add(kind::communicator, std::make_unique<communicator>(std::move(made)), rank, size);
}

void end_engine(hvd_engine number) {
  const std::unique_ptr<object> last = table::all().remove(number, kind::engine, "engine_free");
  static_cast<engine_object&>(*last).runs->shutdown();  // also if a call of another thread keeps it alive
}
void end_communicator(hvd_comm number) {
  table::taken held(number, kind::communicator, "free");
  held.remove();
}
/// Ends all remaining objects of this process, so that other ranks see it leave and do not report it as lost.
void end_all() noexcept {
  table::all().each(kind::engine, [](hvd_engine e) { guarded("engine_free", [&] { end_engine(e); }); });
  table::all().each(kind::communicator, [](hvd_comm c) { guarded("free", [&] { end_communicator(c); }); });
}

void require_version(std::string_view function, int abi) {
  if (abi == HVD_ABI_VERSION) return;
  refuse(function, {"the program was compiled with an hvd.h of version ", abi, ", the library is of version ",
                    HVD_ABI_VERSION, " (HVD_ABI_VERSION); compile the program with the header of the library"});
}

hvd_comm join(const char* transport) {
  using tcp = Hierarchical<ShmTransport, TcpTransport>;
#ifdef HVD_C_MPI
  return publish(any_transport::from_environment<MpiTransport, tcp>(transport));
#else
  const char* const wanted = transport != nullptr ? transport : std::getenv("HVD_TRANSPORT");
  if (wanted != nullptr && std::string_view(wanted) == "mpi") {
    detail::fail(error_kind::unsupported, {"this library is built without MPI; compile c/hvd.cpp with -DHVD_C_MPI and "
                                           "an MPI, or use \"tcp\""});
  }
  return publish(any_transport::from_environment<tcp>(transport));
#endif
}

}  // namespace
}  // namespace hvd::inline HVD_ABI::c

namespace c = hvd::c;
using c::guarded, c::on, c::require, c::table, c::communicator, c::checked, c::submission, c::kind;
using hvd::operation;

extern "C" {

const char* hvd_last_error(void) { return c::last_failure.text; }
int hvd_last_error_rank(void) { return c::last_failure.rank; }
const char* hvd_version(void) { return hvd::version.data(); }
size_t hvd_size_of(int dtype) { return c::is_dtype(dtype) ? hvd::size_of(static_cast<hvd::dtype>(dtype)) : 0; }

// ---- groups of ranks ------------------------------------------------------------------------------------------

int hvd_init(int abi, const char* transport, hvd_comm* comm) {
  return guarded("init", [&] {
    c::require_version("init", abi);
    require("init", comm, "comm", "an hvd_comm");
    *comm = 0;
    *comm = c::join(transport);
  });
}

int hvd_fork_run(int abi, int np, int (*f)(hvd_comm comm, void* user), void* user, int* exit_code) {
  return guarded("fork_run", [&] {
    c::require_version("fork_run", abi);
    require("fork_run", reinterpret_cast<const void*>(f), "f", "a function");
    require("fork_run", exit_code, "exit_code", "an int");
    *exit_code = hvd::fork_run(np, [&](hvd::ShmTransport& joined) {
      const int code = f(c::publish(hvd::any_transport(std::move(joined))), user);
      c::end_all();
      return code;
    });
  });
}

int hvd_split(hvd_comm comm, int color, int key, hvd_comm* part) {
  return on(comm, "split", [&](communicator& group) {
    hvd::detail::arguments found(operation::split, group.rank(), group.size());
    if (part == nullptr) found.refuse({"part is null; pass the address of an hvd_comm"});
    found.check(group);
    *part = 0;
    auto made = group.split(color < 0 ? hvd::no_group : color, key);
    if (color >= 0) *part = c::publish(std::move(made));
  });
}

int hvd_without_lost(hvd_comm comm, hvd_comm* next) {
  return on(comm, "without_lost", [&](communicator& group) {
    require("without_lost", next, "next", "an hvd_comm");
    *next = 0;
    *next = c::publish(group.without_lost());
  });
}

int hvd_free(hvd_comm comm) {
  if (comm == 0) return HVD_OK;
  return guarded("free", [&] { c::end_communicator(comm); });
}

int hvd_rank(hvd_comm comm) {
  int rank = -1;
  guarded("rank", [&] { rank = table::all().place(comm, "rank").rank; });
  return rank;
}
int hvd_size(hvd_comm comm) {
  int size = -1;
  guarded("size", [&] { size = table::all().place(comm, "size").size; });
  return size;
}

int hvd_alloc_shared(hvd_comm comm, size_t bytes, void** memory) {
  return on(comm, "alloc_shared", [&](communicator& group) {
    hvd::detail::arguments found(operation::alloc_shared, group.rank(), group.size());
    if (memory == nullptr) found.refuse({"memory is null; pass the address of a pointer"});
    found.check(group);
    *memory = nullptr;
    *memory = group.alloc_shared(bytes);
  });
}
int hvd_free_shared(hvd_comm comm, void* memory) {
  return on(comm, "free_shared", [&](communicator& group) {
    if (memory == nullptr || group.free_shared(memory)) return;
    c::refuse("free_shared", {"on rank ", group.rank(), " of ", group.size(),
                              ": this memory is not, or no longer, from hvd_alloc_shared on this communicator"});
  });
}

// ---- collectives ----------------------------------------------------------------------------------------------

int hvd_barrier(hvd_comm comm) {
  return on(comm, "barrier", [](communicator& group) { group.barrier(); });
}

int hvd_allreduce(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int op) {
  return on(comm, "allreduce", [&](communicator& group) { c::allreduce(group, in, out, count, dtype, op); });
}
int hvd_allreduce_scaled(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int op, double prescale,
                         double postscale) {
  return on(comm, "allreduce",
            [&](communicator& group) { c::allreduce(group, in, out, count, dtype, op, prescale, postscale); });
}
int hvd_reduce(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int op, int root) {
  return on(comm, "reduce", [&](communicator& group) { c::reduce(group, in, out, count, dtype, op, root); });
}
int hvd_scan(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int op) {
  return on(comm, "scan",
            [&](communicator& group) { c::reduce_vector<hvd::scan_call>(group, in, out, count, dtype, op); });
}
int hvd_exscan(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int op) {
  return on(comm, "exscan",
            [&](communicator& group) { c::reduce_vector<hvd::exscan_call>(group, in, out, count, dtype, op); });
}
int hvd_broadcast(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int root) {
  return on(comm, "broadcast", [&](communicator& group) { c::broadcast(group, in, out, count, dtype, root); });
}

int hvd_allgather(hvd_comm comm, const void* in, void* out, size_t count, int dtype) {
  return on(comm, "allgather", [&](communicator& group) {
    checked a(group, operation::allgather, dtype);
    c::allgather(group, a, in, out, c::equal_blocks(a, group, "output", count));
  });
}
int hvd_allgather_v(hvd_comm comm, const void* in, void* out, const size_t* counts, int dtype) {
  return on(comm, "allgather_v", [&](communicator& group) {
    checked a(group, operation::allgather, dtype, "_v");
    c::allgather(group, a, in, out, {a.blocks("counts", counts), a.unit()});
  });
}
int hvd_gather(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int root) {
  return on(comm, "gather", [&](communicator& group) {
    checked a(group, operation::gather, dtype);
    c::gather(group, a, in, out, c::equal_blocks(a.root(root), group, "output", count), root);
  });
}
int hvd_gather_v(hvd_comm comm, const void* in, void* out, const size_t* counts, int dtype, int root) {
  return on(comm, "gather_v", [&](communicator& group) {
    checked a(group, operation::gather, dtype, "_v");
    c::gather(group, a, in, out, {a.root(root).blocks("counts", counts), a.unit()}, root);
  });
}
int hvd_scatter(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int root) {
  return on(comm, "scatter", [&](communicator& group) {
    checked a(group, operation::scatter, dtype);
    c::scatter(group, a, in, out, c::equal_blocks(a.root(root), group, "input", count), root);
  });
}
int hvd_scatter_v(hvd_comm comm, const void* in, void* out, const size_t* counts, int dtype, int root) {
  return on(comm, "scatter_v", [&](communicator& group) {
    checked a(group, operation::scatter, dtype, "_v");
    c::scatter(group, a, in, out, {a.root(root).blocks("counts", counts), a.unit()}, root);
  });
}
int hvd_reduce_scatter(hvd_comm comm, const void* in, void* out, size_t count, int dtype, int op) {
  return on(comm, "reduce_scatter", [&](communicator& group) {
    checked a(group, operation::reduce_scatter, dtype);
    c::reduce_scatter(group, a, in, out, c::equal_blocks(a, group, "input", count), op);
  });
}
int hvd_reduce_scatter_v(hvd_comm comm, const void* in, void* out, const size_t* counts, int dtype, int op) {
  return on(comm, "reduce_scatter_v", [&](communicator& group) {
    checked a(group, operation::reduce_scatter, dtype, "_v");
    c::reduce_scatter(group, a, in, out, {a.blocks("counts", counts), a.unit()}, op);
  });
}
int hvd_alltoall(hvd_comm comm, const void* in, void* out, size_t count, int dtype) {
  return on(comm, "alltoall", [&](communicator& group) { c::alltoall(group, in, out, count, dtype); });
}
int hvd_alltoall_v(hvd_comm comm, const void* in, void* out, const size_t* send, const size_t* receive, int dtype) {
  return on(comm, "alltoall_v", [&](communicator& group) { c::alltoall_v(group, in, out, send, receive, dtype); });
}

int hvd_send(hvd_comm comm, const void* buffer, size_t count, int dtype, int peer) {
  return on(comm, "send", [&](communicator& group) {
    checked a(group, operation::send, dtype);
    a.buffer("buffer", buffer, count).found().rank_of("peer", peer);
    a.check_alone();
    group.send(a.bytes(buffer), count * a.unit(), peer);
  });
}
int hvd_recv(hvd_comm comm, void* buffer, size_t count, int dtype, int peer) {
  return on(comm, "recv", [&](communicator& group) {
    checked a(group, operation::recv, dtype);
    a.buffer("buffer", buffer, count).found().rank_of("peer", peer);
    a.check_alone();
    group.recv(a.bytes(buffer), count * a.unit(), peer);
  });
}

int hvd_allreduce_list(hvd_comm comm, const hvd_tensor* tensors, size_t n, int op) {
  return on(comm, "allreduce",
            [&](communicator& group) { c::allreduce_list(group, tensors, n, static_cast<hvd::reduce_op>(op), op); });
}
int hvd_broadcast_list(hvd_comm comm, const hvd_tensor* tensors, size_t n, int root) {
  return on(comm, "broadcast", [&](communicator& group) {
    const hvd::tensor_list list = c::list_of(group, operation::broadcast, tensors, n);
    hvd::broadcast(static_cast<hvd::any_transport&>(group), list, root);
  });
}

// ---- the engine -----------------------------------------------------------------------------------------------

int hvd_engine_init(hvd_comm comm, hvd_engine* engine) {
  return on(comm, "engine_init", [&](communicator& group) {
    hvd::detail::arguments found(operation::split, group.rank(), group.size());
    if (engine == nullptr) found.refuse({"engine_init: engine is null; pass the address of an hvd_engine"});
    found.check(group);
    *engine = 0;
    *engine = table::all().add(kind::engine, std::make_unique<c::engine_object>(std::make_shared<c::engine>(group)));
  });
}
int hvd_engine_continue_over(hvd_engine engine, hvd_comm comm) {
  return on(comm, "engine_continue_over",
            [&](communicator& group) { c::engine_of(engine, "engine_continue_over")->continue_over(group); });
}
int hvd_engine_free(hvd_engine engine) {
  if (engine == 0) return HVD_OK;
  return guarded("engine_free", [&] { c::end_engine(engine); });
}
int hvd_engine_add_process_set(hvd_engine engine, const int* ranks, size_t n, int* process_set) {
  return guarded("engine_add_process_set", [&] {
    const auto e = c::engine_of(engine, "engine_add_process_set");
    require("engine_add_process_set", process_set, "process_set", "an int");
    *process_set = -1;
    if (n != 0) require("engine_add_process_set", ranks, "ranks", "the first of n ranks");
    if (n > static_cast<std::size_t>(hvd::detail::max_ranks)) {
      c::refuse("engine_add_process_set",
                {"n, the number of ranks, is ", n, "; allowed: at most ", hvd::detail::max_ranks});
    }
    *process_set = e->add_process_set(std::vector<int>(ranks, ranks + n));
  });
}
int hvd_engine_remove_process_set(hvd_engine engine, int process_set) {
  return guarded("engine_remove_process_set",
                 [&] { c::engine_of(engine, "engine_remove_process_set")->remove_process_set(process_set); });
}

int hvd_engine_alloc_bucket(hvd_engine engine, size_t bytes, void** memory) {
  return guarded("engine_alloc_bucket", [&] {
    require("engine_alloc_bucket", memory, "memory", "a pointer");
    *memory = nullptr;
    *memory = c::alloc_bucket(engine, bytes);
  });
}

int hvd_engine_allreduce(hvd_engine engine, const char* name, const void* in, void* out, size_t count, int dtype,
                         int op, const hvd_submit* how, hvd_handle* handle) {
  return guarded("engine_allreduce", [&] {
    submission s(engine, "engine_allreduce", operation::allreduce, name, how, handle);
    s.reduced_by(op).tensor(in, out, count, dtype).submit();
  });
}
int hvd_engine_allreduce_list(hvd_engine engine, const char* name, const hvd_tensor* tensors, size_t n, int op,
                              const hvd_submit* how, hvd_handle* handle) {
  return guarded("engine_allreduce_list", [&] {
    submission s(engine, "engine_allreduce_list", operation::allreduce, name, how, handle);
    s.reduced_by(op).list(tensors, n).submit();
  });
}
int hvd_engine_broadcast(hvd_engine engine, const char* name, const void* in, void* out, size_t count, int dtype,
                         int root, const hvd_submit* how, hvd_handle* handle) {
  return guarded("engine_broadcast", [&] {
    submission s(engine, "engine_broadcast", operation::broadcast, name, how, handle);
    s.from(root).tensor(in, out, count, dtype).submit();
  });
}
int hvd_engine_allgather(hvd_engine engine, const char* name, const void* in, size_t count, int dtype,
                         const hvd_submit* how, hvd_handle* handle) {
  return guarded("engine_allgather", [&] {
    submission s(engine, "engine_allgather", operation::allgather, name, how, handle);
    s.input(in, count, dtype).submit();
  });
}
int hvd_engine_reduce_scatter(hvd_engine engine, const char* name, const void* in, size_t count, int dtype, int op,
                              const hvd_submit* how, hvd_handle* handle) {
  return guarded("engine_reduce_scatter", [&] {
    submission s(engine, "engine_reduce_scatter", operation::reduce_scatter, name, how, handle);
    s.reduced_by(op).input(in, count, dtype).submit();
  });
}
int hvd_engine_alltoall(hvd_engine engine, const char* name, const void* in, size_t count, int dtype,
                        const size_t* splits, const hvd_submit* how, hvd_handle* handle) {
  return guarded("engine_alltoall", [&] {
    submission s(engine, "engine_alltoall", operation::alltoall, name, how, handle);
    s.input(in, count, dtype).splits(splits).submit();
  });
}
int hvd_engine_barrier(hvd_engine engine, const char* name, const hvd_submit* how, hvd_handle* handle) {
  return guarded("engine_barrier",
                 [&] { submission(engine, "engine_barrier", operation::barrier, name, how, handle).submit(); });
}
int hvd_engine_join(hvd_engine engine, hvd_handle* handle) {
  return guarded("engine_join", [&] {
    const auto e = c::engine_of(engine, "engine_join");
    require("engine_join", handle, "handle", "an hvd_handle");
    *handle = 0;
    *handle = c::number_of([&] { return e->join(); }, false);
  });
}

int hvd_wait(hvd_handle handle, double seconds) {
  return guarded("wait", [&] { c::wait(handle, seconds); });
}
int hvd_poll(hvd_handle handle, int* done) {
  return guarded("poll", [&] {
    const hvd::handle end = c::handle_of(handle, "poll").first;
    require("poll", done, "done", "an int");
    *done = end.poll() ? 1 : 0;
  });
}
int hvd_output(hvd_handle handle, const void** data, size_t* count) {
  return guarded("output", [&] { c::output(handle, data, count); });
}
int hvd_received_splits(hvd_handle handle, size_t* counts) {
  return guarded("received_splits", [&] { c::received_splits(handle, counts); });
}
int hvd_last_joined(hvd_handle handle, int* rank) {
  return guarded("last_joined", [&] { c::last_joined(handle, rank); });
}
int hvd_release(hvd_handle handle) {
  if (handle == 0) return HVD_OK;
  return guarded("release", [&] { table::all().remove(handle, kind::handle, "release"); });
}

}  // extern "C"
