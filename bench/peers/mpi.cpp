// bench/peers/mpi.cpp: one rank of an MPI library under measurement. One source for MPICH, Open MPI and Intel MPI.
//
// Each collective is the MPI call that a program would write for it, with MPI's own datatypes and operations. What MPI
// lacks is done around the call (an average is a sum and a division) or refused with a sentence.

// The C interface only, even if the MPI has C++ bindings.
#define MPICH_SKIP_MPICXX 1
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <bench/peers/scale.hpp>
#include <bench/peers/settings.hpp>
#include <bench/rank/pages.hpp>
#include <bench/rank/worker.hpp>

#include <climits>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::bench {
namespace {

/// MPI errors as exceptions: the communicator returns them.
void require(int code, const char* operation) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(std::string(operation) + " failed: " + text);
}

/// "MPICH 4.0.2", "Open MPI 4.1.4", "Intel MPI 2021.18.1" from the long texts that libraries return.
std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string_view all(text, static_cast<std::size_t>(length));
  const auto word_after = [all](std::string_view key) {
    const std::size_t at = all.find(key);
    if (at == all.npos) return std::string();
    const std::size_t first = all.find_first_not_of(" \t:", at + key.size());
    if (first == all.npos) return std::string();
    return std::string(all.substr(first, all.find_first_of(" \t\n,", first) - first));
  };
  if (const std::string v = word_after("Intel(R) MPI Library"); !v.empty()) return "Intel MPI " + v;
  if (const std::string v = word_after("Open MPI v"); !v.empty()) return "Open MPI " + v;
  if (const std::string v = word_after("MPICH Version"); !v.empty()) {
    const std::string device = word_after("MPICH Device");
    return "MPICH " + v + (device.empty() ? "" : "; device " + device);
  }
  return std::string(all.substr(0, all.find('\n')));
}

/// The type's name in MPI; MPI_DATATYPE_NULL if it has none.
MPI_Datatype reduced_type(dtype type) {
  switch (type) {
    case dtype::int8: return MPI_INT8_T;
    case dtype::uint8: return MPI_UINT8_T;
    case dtype::int16: return MPI_INT16_T;
    case dtype::uint16: return MPI_UINT16_T;
    case dtype::int32: return MPI_INT32_T;
    case dtype::uint32: return MPI_UINT32_T;
    case dtype::int64: return MPI_INT64_T;
    case dtype::uint64: return MPI_UINT64_T;
    case dtype::float32: return MPI_FLOAT;
    case dtype::float64: return MPI_DOUBLE;
    case dtype::boolean: return MPI_C_BOOL;
    case dtype::complex64: return MPI_C_FLOAT_COMPLEX;
    case dtype::complex128: return MPI_C_DOUBLE_COMPLEX;
    default: return MPI_DATATYPE_NULL;  // 16-bit floats: extensions of some, and slow
  }
}

/// To move elements, any type of their size will do.
MPI_Datatype moved_type(dtype type) {
  const MPI_Datatype named = reduced_type(type);
  return named != MPI_DATATYPE_NULL ? named : MPI_UINT16_T;
}

/// As hvd defines min and max of bool.
MPI_Op operation(dtype type, redop op) {
  switch (op) {
    case redop::prod: return MPI_PROD;
    case redop::min: return type == dtype::boolean ? MPI_LAND : MPI_MIN;
    case redop::max: return type == dtype::boolean ? MPI_LOR : MPI_MAX;
    default: return MPI_SUM;
  }
}

/// MPICH 4.0 compares unsigned integers as if they were signed. Asked of the library, not of its version.
bool orders_unsigned(dtype type) {
  if (type != dtype::uint8 && type != dtype::uint16 && type != dtype::uint32 && type != dtype::uint64) return true;
  constexpr int elements = 64;  // enough for vector instructions
  const std::size_t unit = size_of(type);
  std::vector<unsigned char> largest(elements * unit, 0xff), both(elements * unit, 0);
  require(MPI_Reduce_local(largest.data(), both.data(), elements, reduced_type(type), MPI_MAX), "MPI_Reduce_local");
  return both == largest;
}

class MpiBackend {
 public:
  MpiBackend(int* argc, char*** argv) {
    require(MPI_Init(argc, argv), "MPI_Init");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  MpiBackend(const MpiBackend&) = delete;
  MpiBackend& operator=(const MpiBackend&) = delete;
  ~MpiBackend() {
    // After a failure the others may never come to MPI_Finalize.
    if (failed_) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::string describe() const { return library_version() + settings_text(); }

  [[nodiscard]] std::string supports(const job& j) const {
    if (reduces(j.kind) && reduced_type(j.type) == MPI_DATATYPE_NULL) {
      return "MPI has no reduction of " + std::string(type_name(j.type));
    }
    if (reduces(j.kind) && (j.op == redop::min || j.op == redop::max) && !orders_unsigned(j.type)) {
      return "this MPI has a wrong " + std::string(name(j.op)) + " of " + std::string(type_name(j.type)) +
             ": it compares as if signed";
    }
    if (!has_model(j.kind) && j.count > INT_MAX) {
      return "MPI counts elements in int, and " + std::to_string(j.count) + " is more";
    }
    if (j.kind == collective::reduce_scatter && j.in_place) {
      return "MPI leaves an in-place reduce_scatter's result at the start of the buffer, not in this rank's block";
    }
    return {};
  }

  void prepare(const job&) {}
  void* allocate(std::size_t bytes, bool /*shared: MPI's collectives gain nothing by it*/) {
    return pages_.allocate(bytes);
  }
  void release(void* memory) { pages_.release(memory); }

  void run(const call& c) {
    const int code = collect(c);
    if (code != MPI_SUCCESS) [[unlikely]] {
      failed_ = true;
      require(code, name(c.kind).data());
    }
    if (c.op == redop::avg) finish_average(c, rank_, size_);
  }

 private:
  [[nodiscard]] int collect(const call& c) const {
    const MPI_Comm comm = MPI_COMM_WORLD;
    const int count = static_cast<int>(c.count);
    const bool root = rank_ == c.root;
    const std::size_t block = c.count * size_of(c.type);
    // The block of this rank within the larger buffer, for calls in place.
    const std::size_t own = static_cast<std::size_t>(rank_) * block;
    const MPI_Datatype type = moved_type(c.type);
    const MPI_Op op = operation(c.type, c.op);
    const void* const in = c.in == c.out ? MPI_IN_PLACE : c.in;
    switch (c.kind) {
      case collective::fused:
      case collective::engine:
      case collective::allreduce: return MPI_Allreduce(in, c.out, count, type, op, comm);
      case collective::reduce:
        return root ? MPI_Reduce(in, c.out, count, type, op, c.root, comm)
                    : MPI_Reduce(c.in, nullptr, count, type, op, c.root, comm);
      case collective::reduce_scatter: return MPI_Reduce_scatter_block(c.in, c.out, count, type, op, comm);
      case collective::allgather: {
        const bool in_place = c.in == static_cast<std::byte*>(c.out) + own;
        return MPI_Allgather(in_place ? MPI_IN_PLACE : c.in, count, type, c.out, count, type, comm);
      }
      case collective::broadcast: {
        const int code = MPI_Bcast(root ? const_cast<void*>(c.in) : c.out, count, type, c.root, comm);
        // MPI has one buffer; the root's own copy is made while others still receive.
        if (root && c.in != c.out) std::memcpy(c.out, c.in, block);
        return code;
      }
      case collective::alltoall: return MPI_Alltoall(in, count, type, c.out, count, type, comm);
      case collective::gather: {
        const bool in_place = root && c.in == static_cast<std::byte*>(c.out) + own;
        return MPI_Gather(in_place ? MPI_IN_PLACE : c.in, count, type, c.out, count, type, c.root, comm);
      }
      case collective::scatter: {
        const bool in_place = root && c.out == static_cast<const std::byte*>(c.in) + own;
        return MPI_Scatter(c.in, count, type, in_place ? MPI_IN_PLACE : c.out, count, type, c.root, comm);
      }
      case collective::scan: return MPI_Scan(in, c.out, count, type, op, comm);
      case collective::exscan: return MPI_Exscan(in, c.out, count, type, op, comm);
      case collective::send_recv:
        return MPI_Sendrecv(c.in, count, type, (rank_ + 1) % size_, 0, c.out, count, type, (rank_ + size_ - 1) % size_,
                            0, comm, MPI_STATUS_IGNORE);
      case collective::barrier: return MPI_Barrier(comm);
    }
    return MPI_ERR_ARG;
  }

  int rank_ = 0;
  int size_ = 1;
  bool failed_ = false;
  PageAllocator pages_;
};

}  // namespace
}  // namespace hvd::bench

int main(int argc, char** argv) {
  return hvd::bench::worker_main([&](hvd::bench::place) { return hvd::bench::MpiBackend(&argc, &argv); });
}
