// bench/peers/oneccl.cpp: one rank of Intel's oneCCL under measurement, for CPUs, over Intel MPI.
//
// oneCCL takes the profiler's hooks from a library that few have; hooks that are null do nothing.
#include <oneapi/ccl.hpp>

#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <bench/peers/scale.hpp>
#include <bench/peers/settings.hpp>
#include <bench/rank/pages.hpp>
#include <bench/rank/worker.hpp>

#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

extern "C" {
void* __itt_domain_create_ptr__3_0 = nullptr;
void* __itt_event_create_ptr__3_0 = nullptr;
void* __itt_event_end_ptr__3_0 = nullptr;
void* __itt_event_start_ptr__3_0 = nullptr;
void* __itt_metadata_add_ptr__3_0 = nullptr;
void* __itt_string_handle_create_ptr__3_0 = nullptr;
void* __itt_task_begin_ptr__3_0 = nullptr;
void* __itt_task_end_ptr__3_0 = nullptr;
void* __itt_thread_set_name_ptr__3_0 = nullptr;
}

namespace hvd::bench {
namespace {

/// The type's name in oneCCL; nothing if it has none.
std::optional<ccl::datatype> type_of(dtype type) {
  switch (type) {
    case dtype::int8: return ccl::datatype::int8;
    case dtype::uint8: return ccl::datatype::uint8;
    case dtype::int16: return ccl::datatype::int16;
    case dtype::uint16: return ccl::datatype::uint16;
    case dtype::int32: return ccl::datatype::int32;
    case dtype::uint32: return ccl::datatype::uint32;
    case dtype::int64: return ccl::datatype::int64;
    case dtype::uint64: return ccl::datatype::uint64;
    case dtype::float16: return ccl::datatype::float16;
    case dtype::bfloat16: return ccl::datatype::bfloat16;
    case dtype::float32: return ccl::datatype::float32;
    case dtype::float64: return ccl::datatype::float64;
    default: return std::nullopt;
  }
}

ccl::reduction operation(redop op) {
  switch (op) {
    case redop::prod: return ccl::reduction::prod;
    case redop::min: return ccl::reduction::min;
    case redop::max: return ccl::reduction::max;
    default: return ccl::reduction::sum;
  }
}

/// MPI with threads, as oneCCL asks for it, from before its first communicator to after its last.
struct mpi {
  mpi(int* argc, char*** argv) {
    int given = 0;
    if (MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &given) != MPI_SUCCESS || given != MPI_THREAD_MULTIPLE) {
      throw std::runtime_error("MPI_Init_thread gives no MPI_THREAD_MULTIPLE");
    }
  }
  mpi(const mpi&) = delete;
  mpi& operator=(const mpi&) = delete;
  ~mpi() { MPI_Finalize(); }
};

class CclBackend {
 public:
  CclBackend(int* argc, char*** argv) : mpi_(argc, argv) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    ccl::init();
    ccl::kvs::address_type address;
    if (rank_ == 0) {
      meeting_ = ccl::create_main_kvs();
      address = meeting_->get_address();
    }
    MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank_ != 0) meeting_ = ccl::create_kvs(address);
    comm_.emplace(ccl::create_communicator(size_, rank_, meeting_));
  }
  CclBackend(const CclBackend&) = delete;
  CclBackend& operator=(const CclBackend&) = delete;
  ~CclBackend() {
    // After a failure the others may never come to MPI_Finalize.
    if (failed_) MPI_Abort(MPI_COMM_WORLD, 1);
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::string describe() const {
    const auto v = ccl::get_library_version();
    return "oneCCL " + std::to_string(v.major) + "." + std::to_string(v.minor) + "." + std::to_string(v.update) +
           " for CPUs" + settings_text();
  }

  [[nodiscard]] std::string supports(const job& j) const {
    if (!type_of(j.type)) return "oneCCL has no " + std::string(type_name(j.type));
    if (reduces(j.kind) && j.op == redop::avg && (j.type == dtype::float16 || j.type == dtype::bfloat16)) {
      return "oneCCL has no average on CPUs";
    }
    using enum collective;
    if (!has_model(j.kind) &&
        !is_one_of(j.kind, {allreduce, reduce, reduce_scatter, allgather, broadcast, alltoall, barrier})) {
      return "oneCCL has no " + std::string(name(j.kind)) + " of its own on CPUs";
    }
    if (j.in_place && is_one_of(j.kind, {reduce_scatter, alltoall})) return "oneCCL does not do it in place";
    return {};
  }

  void prepare(const job&) {}
  void* allocate(std::size_t bytes, bool /*shared: oneCCL has no such memory on CPUs*/) {
    return pages_.allocate(bytes);
  }
  void release(void* memory) { pages_.release(memory); }

  void run(const call& c) {
    try {
      start(c).wait();
    } catch (...) {
      failed_ = true;
      throw;
    }
    if (c.op == redop::avg) finish_average(c, rank_, size_);
  }

 private:
  ccl::event start(const call& c) {
    if (c.kind == collective::barrier) return ccl::barrier(*comm_);
    const ccl::datatype type = *type_of(c.type);
    const ccl::reduction op = operation(c.op);
    switch (c.kind) {
      case collective::fused:
      case collective::engine:
      case collective::allreduce: return ccl::allreduce(c.in, c.out, c.count, type, op, *comm_);
      case collective::reduce: return ccl::reduce(c.in, c.out, c.count, type, op, c.root, *comm_);
      case collective::reduce_scatter: return ccl::reduce_scatter(c.in, c.out, c.count, type, op, *comm_);
      case collective::allgather: return ccl::allgather(c.in, c.out, c.count, type, *comm_);
      case collective::broadcast: return ccl::broadcast(const_cast<void*>(c.in), c.out, c.count, type, c.root, *comm_);
      case collective::alltoall: return ccl::alltoall(c.in, c.out, c.count, type, *comm_);
      default: throw std::runtime_error("not prepared for " + std::string(name(c.kind)));
    }
  }

  mpi mpi_;
  bool failed_ = false;
  int rank_ = 0;
  int size_ = 1;
  ccl::shared_ptr_class<ccl::kvs> meeting_;
  std::optional<ccl::communicator> comm_;
  PageAllocator pages_;
};

}  // namespace
}  // namespace hvd::bench

int main(int argc, char** argv) {
  return hvd::bench::worker_main([&](hvd::bench::place) { return hvd::bench::CclBackend(&argc, &argv); });
}
