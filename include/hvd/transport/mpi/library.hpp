// hvd/transport/mpi/library.hpp: the MPI below MpiTransport: its start and end, its texts, and its reductions.
#pragma once

#include <hvd/detail/wait.hpp>
#include <hvd/error.hpp>
#include <hvd/op.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <unistd.h>

// MPI's C++ bindings were removed from the standard. In libraries that still have them, they require linking a further
// library.
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#include <mpi.h>

namespace hvd::inline HVD_ABI::detail {

/// "MPI_THREAD_FUNNELED".
inline std::string mpi_level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE: return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED: return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED: return "MPI_THREAD_SERIALIZED";
    case MPI_THREAD_MULTIPLE: return "MPI_THREAD_MULTIPLE";
    default: return "thread level " + std::to_string(level);
  }
}

/// Name and version: the first line of MPI_Get_library_version, up to a comma.
inline std::string mpi_library_name() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return "an MPI without a name";
  std::string line(text.data(), static_cast<std::size_t>(length));
  line.resize(std::min(line.find_first_of("\n,"), line.size()));
  for (char& c : line) {
    if (c == '\t') c = ' ';
  }
  return line;
}

/// MPI's own sentence for an error, in one line.
inline std::string mpi_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) return "MPI error " + std::to_string(code);
  std::string line(text.data(), static_cast<std::size_t>(length));
  while (!line.empty() && line.back() == '\n') line.pop_back();
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  return line;
}

inline error_kind mpi_error_kind(int code) {
  int found = MPI_ERR_OTHER;
  MPI_Error_class(code, &found);
  switch (found) {
    case MPI_ERR_TRUNCATE: return error_kind::mismatch;
    case MPI_ERR_NO_MEM: return error_kind::no_memory;
    default: return error_kind::system;
  }
}

/// This process's MPI. The first transport initialises it if it is not yet initialised; it is then finalised when the
/// process exits with 0. A process that exits with another status does not call MPI_Finalize, and one in which a
/// deadline has passed always exits with another status: MPI_Finalize would wait for ranks that never come, while a
/// launcher ends the whole job when a rank exits without it.
class mpi_process {
 public:
  /// Ensures that MPI runs at thread level `wanted` at least.
  static void start(int wanted) {
    int yes = 0;
    MPI_Finalized(&yes);
    if (yes != 0) {
      throw error(error_kind::unsupported, "MpiTransport: MPI is finalized already and cannot be started again");
    }
    int given = MPI_THREAD_SINGLE;
    MPI_Initialized(&yes);
    if (yes != 0) {
      MPI_Query_thread(&given);
    } else {
      if (MPI_Init_thread(nullptr, nullptr, wanted, &given) != MPI_SUCCESS) {
        throw error(error_kind::system, "MpiTransport: MPI_Init_thread failed");
      }
      owner() = ::getpid();
      ::on_exit([](int status, void*) { finish(status); }, nullptr);
      refuse_foreign_launcher();
    }
    if (given >= wanted) return;
    throw error(error_kind::unsupported, "MpiTransport: MPI was initialised with " + mpi_level_name(given) + " but " +
                                             mpi_level_name(wanted) +
                                             " is wanted; call MPI_Init_thread with that level, or, in a program " +
                                             (given == MPI_THREAD_SERIALIZED ? "in which one thread at a time uses MPI"
                                                                             : "whose main thread alone uses MPI") +
                                             ", set thread_level in the options to " + mpi_level_name(given));
  }

  /// From now on MPI_Finalize might wait for ever.
  static void give_up() noexcept { given_up() = true; }

 private:
  static std::atomic<bool>& given_up() noexcept {
    static std::atomic<bool> yes = false;
    return yes;
  }
  /// The process that has to finalise; 0 if none has. (A forked child that exits must not.)
  static pid_t& owner() noexcept {
    static pid_t process = 0;
    return process;
  }
  static void finish(int status) noexcept {
    int finalized = 0;
    if (status != 0 || owner() != ::getpid() || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
    if (given_up()) {
      // Not MPI_Abort: it may end the job before the launcher has read the output of this rank.
      std::fflush(nullptr);
      ::_exit(1);
    }
    // MPI_Finalize has no deadline. When all ranks have come, nothing is left to be done.
    MPI_Request all = MPI_REQUEST_NULL;
    int here = MPI_Ibarrier(MPI_COMM_WORLD, &all) == MPI_SUCCESS ? 0 : 1;
    for (backoff rest(paces::round); here == 0; rest.step()) {
      if (MPI_Test(&all, &here, MPI_STATUS_IGNORE) != MPI_SUCCESS) break;
    }
    if (finalize_hangs()) return leave_hydra();
    static std::atomic<bool> done = false;
    try {
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::seconds(10));
        if (done) return;
        std::fflush(nullptr);
        ::_exit(0);
      }).detach();
    } catch (const std::exception&) {
      // Without the thread, it waits as long as MPI does.
    }
    MPI_Finalize();
    done = true;
  }
  /// Whether MPI_Finalize may wait for ever: in MPICH before 4.2 over UCX, with ranks on several hosts. A rank waits
  /// there for answers of others that wait for it in a barrier of the launcher Hydra, and answer nobody any more
  /// (github.com/pmodels/mpich/pull/6596). Each rank gives the same answer.
  static bool finalize_hangs() noexcept {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0, size = 1, major = 0, minor = 0;
    MPI_Get_library_version(text, &length);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (std::sscanf(text, "MPICH Version: %d.%d", &major, &minor) != 2 || std::strstr(text, "ch4:ucx") == nullptr) {
      return false;
    }
    const char* const on_this_host = std::getenv("MPI_LOCALNRANKS");  // Hydra sets it
    return std::pair(major, minor) < std::pair(4, 2) && on_this_host != nullptr && std::atoi(on_this_host) < size &&
           std::getenv("PMI_FD") != nullptr;
  }
  /// Tells Hydra, in the words of PMI-1, what MPI_Finalize would tell it. Without them it takes the end of a process
  /// for a failure of the job.
  static void leave_hydra() noexcept {
    // UCX may still hold messages of the barrier, which it gives to the kernel when it is polled.
    for (int i = 0, unused = 0; i < 20; ++i) {
      MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &unused, MPI_STATUS_IGNORE);
      nap(paces::other_process.sleep);
    }
    const int hydra = std::atoi(std::getenv("PMI_FD"));
    constexpr std::string_view leave = "cmd=finalize\n";
    char answer[64];
    if (::write(hydra, leave.data(), leave.size()) > 0 && ::read(hydra, answer, sizeof answer) > 0) return;
  }
  /// Under the mpiexec of another MPI every process would be rank 0 of 1, and all would do the same work.
  static void refuse_foreign_launcher() {
    int size = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != 1) return;
    for (const char* const name : {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE"}) {
      const char* const text = std::getenv(name);
      if (text == nullptr || std::atoi(text) < 2) continue;
      throw error(error_kind::unsupported, std::string("MpiTransport: the launcher has set ") + name + "=" + text +
                                               " but " + mpi_library_name() +
                                               " sees one rank; start the program with the mpiexec of this MPI");
    }
  }
};

/// A reduction in MPI's terms; `op` is MPI_OP_NULL if MPI has no equivalent.
struct mpi_reduction {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Op op = MPI_OP_NULL;
  std::size_t components = 1;  ///< MPI elements in one element of the user
};

/// Integers are added and multiplied as unsigned ones: the bits are the same, and overflow is defined.
inline MPI_Datatype mpi_integer(dtype type, MPI_Op op) {
  const bool arithmetic = op == MPI_SUM || op == MPI_PROD;
  switch (type) {
    case dtype::int8: return arithmetic ? MPI_UINT8_T : MPI_INT8_T;
    case dtype::int16: return arithmetic ? MPI_UINT16_T : MPI_INT16_T;
    case dtype::int32: return arithmetic ? MPI_UINT32_T : MPI_INT32_T;
    case dtype::int64: return arithmetic ? MPI_UINT64_T : MPI_INT64_T;
    case dtype::uint8: return MPI_UINT8_T;
    case dtype::uint16: return MPI_UINT16_T;
    case dtype::uint32: return MPI_UINT32_T;
    default: return MPI_UINT64_T;
  }
}

/// MPI's equivalent of a built-in operation; MPI_OP_NULL for a user's.
inline MPI_Op mpi_op(std::uint32_t op) noexcept {
  switch (op) {
    case op_id<sum_t>:
    case op_id<average_t>: return MPI_SUM;
    case op_id<min_t>: return MPI_MIN;
    case op_id<max_t>: return MPI_MAX;
    case op_id<product_t>: return MPI_PROD;
    default: return MPI_OP_NULL;
  }
}

/// The integer reductions that this MPI computes as hvd defines them: a bit for each type and operation, found by a
/// test. MPICH 4.0 orders unsigned integers as if they were signed; sums of 8 and 16 bits saturate in Open MPI 4.1 if
/// it uses AVX.
class mpi_sound_integers {
 public:
  static mpi_sound_integers of_this_library() {
    mpi_sound_integers found;
    (found.try_type<std::int8_t>(), found.try_type<std::uint8_t>(), found.try_type<std::int16_t>(),
     found.try_type<std::uint16_t>(), found.try_type<std::int32_t>(), found.try_type<std::uint32_t>(),
     found.try_type<std::int64_t>(), found.try_type<std::uint64_t>());
    return found;
  }
  [[nodiscard]] bool has(dtype type, std::uint32_t op) const noexcept { return (bits >> place(type, op) & 1) != 0; }

  std::uint64_t bits = 0;

 private:
  static constexpr int place(dtype type, std::uint32_t op) noexcept {
    return static_cast<int>(type) * static_cast<int>(std::tuple_size_v<builtin_ops> + 1) + static_cast<int>(op);
  }
  template <class T>
  void try_type() {
    try_op<T, sum_t>([](T a, T b) { return static_cast<T>(std::uint64_t(a) + std::uint64_t(b)); });
    try_op<T, product_t>([](T a, T b) { return static_cast<T>(std::uint64_t(a) * std::uint64_t(b)); });
    try_op<T, min_t>([](T a, T b) { return std::min(a, b); });
    try_op<T, max_t>([](T a, T b) { return std::max(a, b); });
    if (has(dtype_of<T>, op_id<sum_t>)) bits |= std::uint64_t{1} << place(dtype_of<T>, op_id<average_t>);
  }
  template <class T, class Op, class F>
  void try_op(F combine) {
    constexpr std::size_t n = 131;  // whole vectors and a remainder
    std::array<T, n> a, b, right;
    for (std::size_t i = 0; i != n; ++i) {
      const std::uint64_t draw = (i + 1) * 0x9e3779b97f4a7c15ULL;
      a[i] = static_cast<T>(draw >> 7);
      b[i] = static_cast<T>(draw * draw >> 29 ^ draw);
      right[i] = combine(a[i], b[i]);
    }
    const MPI_Op op = mpi_op(op_id<Op>);
    const int code = MPI_Reduce_local(a.data(), b.data(), static_cast<int>(n), mpi_integer(dtype_of<T>, op), op);
    if (code == MPI_SUCCESS && b == right) bits |= std::uint64_t{1} << place(dtype_of<T>, op_id<Op>);
  }
};

/// MPI's equivalent of a reduction. Minimum and maximum of integers only, because MPI does not define the result for a
/// NaN; those of bool are bitwise. None for 16-bit floats, which MPI 4 does not know, nor for user types and
/// operations: an MPI_Op that calls hvd's kernel was tried for sums of `half` (2 ranks, MPICH 4.0: as fast as hvd's own
/// algorithms up to 1 KiB, 1.5 times their time at 64 KiB, 1.7 times at 4 MiB).
inline mpi_reduction mpi_reduction_of(const reduction& r, const mpi_sound_integers& sound) {
  const MPI_Op op = mpi_op(r.op);
  if (op == MPI_OP_NULL) return {};
  const bool arithmetic = op == MPI_SUM || op == MPI_PROD;
  switch (r.type) {
    case dtype::boolean: return {MPI_UINT8_T, op == MPI_MIN ? MPI_BAND : MPI_BOR};
    case dtype::float32: return {MPI_FLOAT, arithmetic ? op : MPI_OP_NULL};
    case dtype::float64: return {MPI_DOUBLE, arithmetic ? op : MPI_OP_NULL};
    case dtype::complex64:
      return op == MPI_SUM ? mpi_reduction{MPI_FLOAT, op, 2} : mpi_reduction{MPI_C_FLOAT_COMPLEX, op};
    case dtype::complex128:
      return op == MPI_SUM ? mpi_reduction{MPI_DOUBLE, op, 2} : mpi_reduction{MPI_C_DOUBLE_COMPLEX, op};
    case dtype::float16:
    case dtype::bfloat16:
    case dtype::user: return {};
    default: return {mpi_integer(r.type, op), sound.has(r.type, r.op) ? op : MPI_OP_NULL};
  }
}

}  // namespace hvd::inline HVD_ABI::detail
