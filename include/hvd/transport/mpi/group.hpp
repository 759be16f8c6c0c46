// hvd/transport/mpi/group.hpp: one rank's membership of a group connected by MPI: messages, waiting, failing.
#pragma once

#include <hvd/call.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/error.hpp>
#include <hvd/policy.hpp>
#include <hvd/topology.hpp>
#include <hvd/transport.hpp>
#include <hvd/transport/mpi/library.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// The options of `MpiTransport`. Programs that pass none get those of `from_environment`.
struct mpi_options {
  using seconds = std::chrono::duration<double>;
  /// HVD_TIMEOUT: the limit for every wait in hvd's loops: messages (and so hvd's algorithms), `barrier`, and requests
  /// from `start`. 0 waits for ever. MPI's blocking collectives have no deadline.
  seconds timeout{300};
  /// The level requested from MPI_Init_thread, and required of an MPI that is initialised already. MPI_THREAD_FUNNELED,
  /// or MPI_THREAD_SINGLE, is enough for a program in which the main thread alone uses hvd; groups that several threads
  /// use at the same time need MPI_THREAD_MULTIPLE.
  int thread_level = MPI_THREAD_SERIALIZED;
  /// The number of polls of MPI before a wait yields its CPU; the second number is for oversubscribed ranks.
  int polls = 512, oversubscribed_polls = 4;
  /// The largest count passed to MPI at once; larger ones go in parts. Equal on all ranks. Tests lower it.
  std::size_t most = INT_MAX;

  /// The defaults, changed by the variable named above; an invalid_argument error names it and its value.
  static mpi_options from_environment(const config::lookup& variable = detail::variable_of_environment) {
    mpi_options o;
    detail::read_variable(variable, "HVD_TIMEOUT", o.timeout, detail::parse_limit);
    return o;
  }
};

namespace detail {

/// A count and a datatype for many bytes.
class mpi_bytes {
 public:
  /// `n` bytes at `offset` of a buffer; beyond `most` with a special datatype, which the destructor frees (MPI allows
  /// that while the operation still runs).
  explicit mpi_bytes(std::size_t n, std::size_t most, std::size_t offset = 0) {
    if (n <= most && offset <= most) {
      count_ = static_cast<int>(n);
      displacement_ = static_cast<int>(offset);
      return;
    }
    const std::size_t runs = n / most;
    MPI_Datatype one = MPI_DATATYPE_NULL, many = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(static_cast<int>(most), MPI_BYTE, &one);
    MPI_Type_contiguous(static_cast<int>(runs), one, &many);
    const std::array<int, 2> lengths{1, static_cast<int>(n % most)};
    const std::array<MPI_Aint, 2> places{static_cast<MPI_Aint>(offset), static_cast<MPI_Aint>(offset + runs * most)};
    const std::array<MPI_Datatype, 2> parts{many, MPI_BYTE};
    MPI_Type_create_struct(2, lengths.data(), places.data(), parts.data(), &type_);
    MPI_Type_commit(&type_);
    MPI_Type_free(&one);
    MPI_Type_free(&many);
    count_ = 1;
  }
  mpi_bytes(mpi_bytes&& other) noexcept
      : count_(other.count_), displacement_(other.displacement_), type_(std::exchange(other.type_, MPI_BYTE)) {}
  mpi_bytes& operator=(mpi_bytes&&) = delete;
  ~mpi_bytes() {
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);
  }

  [[nodiscard]] int count() const noexcept { return count_; }
  [[nodiscard]] int displacement() const noexcept { return displacement_; }
  [[nodiscard]] MPI_Datatype type() const noexcept { return type_; }

 private:
  int count_ = 0;
  int displacement_ = 0;
  MPI_Datatype type_ = MPI_BYTE;
};

/// The values on which the ranks of a job agree when they first meet.
struct mpi_agreement {
  bool oversubscribed = false;  ///< on some host there are more ranks than usable CPUs
  mpi_sound_integers sound;     ///< sound on all ranks
};

class mpi_group {
 public:
  using clock = std::chrono::steady_clock;

  /// Takes over a communicator with MPI_ERRORS_RETURN, and frees it at the end.
  mpi_group(MPI_Comm own, const mpi_options& opts, const mpi_agreement& agreed)
      : comm_(own), options_(opts), agreed_(agreed) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    label_ = "rank " + std::to_string(rank_) + " of " + std::to_string(size_) + " (MPI)";
  }
  mpi_group(const mpi_group&) = delete;
  mpi_group& operator=(const mpi_group&) = delete;
  /// Does not free the communicator after a failure: MPI may wait for the other ranks there.
  ~mpi_group() {
    int finalized = 0;
    if (failed_ || std::uncaught_exceptions() != 0) return;
    if (MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) MPI_Comm_free(&comm_);
  }

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const mpi_options& options() const noexcept { return options_; }
  [[nodiscard]] const mpi_agreement& agreed() const noexcept { return agreed_; }
  [[nodiscard]] const std::string& label() const noexcept { return label_; }

  /// Applies to waits that begin from now on.
  void set_timeout(mpi_options::seconds timeout) noexcept { options_.timeout = timeout; }
  void set_interruption(const interruption& by) noexcept { interruption_ = by; }

  /// True if MPI's collectives may block: not if ranks are oversubscribed and MPI does not yield. (Four ranks on two
  /// CPUs, allreduce of 1 KiB: MPICH takes 13 ms, and 0.4 ms if polled now and then. Open MPI yields.)
  [[nodiscard]] bool blocks() const noexcept {
#ifdef OPEN_MPI
    return true;
#else
    return !agreed_.oversubscribed;
#endif
  }

  /// Throws MPI's error as hvd's.
  void check(int code, operation kind, const char* function) const {
    if (code != MPI_SUCCESS) [[unlikely]]
      check(code, name(kind), function);
  }
  void check(int code, std::string_view operation, const char* function) const {
    if (code == MPI_SUCCESS) [[likely]]
      return;
    fail(mpi_error_kind(code), operation, std::string(function) + " failed: " + mpi_text(code));
  }
  /// Throws the timeout that has ended the group, if one has.
  void usable() const {
    if (failed_) [[unlikely]]
      throw error(*failed_);
  }

  void send(const std::byte* data, std::size_t bytes, int to) {
    begin("send", to, to);
    if (to == rank_) return keep(data, bytes);
    transfer(name(operation::send), data, bytes, to, nullptr, 0, -1, messages);
  }
  void recv(std::byte* data, std::size_t bytes, int from) {
    begin("recv", from, from);
    if (from == rank_) return take("recv", data, bytes);
    transfer(name(operation::recv), nullptr, 0, -1, data, bytes, from, messages);
  }
  void exchange(const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes, int from) {
    begin("exchange", to, from);
    if (to == rank_) keep(out, out_bytes);
    const int receiver = to == rank_ ? -1 : to, sender = from == rank_ ? -1 : from;
    transfer("exchange", out, out_bytes, receiver, in, in_bytes, sender, messages);
    if (from == rank_) take("exchange", in, in_bytes);
  }
  bool arrived(int from) {
    begin("arrived", from, from);
    if (from == rank_) return !own_.empty();
    int flag = 0;
    check(MPI_Iprobe(from, messages, comm_, &flag, MPI_STATUS_IGNORE), "arrived", "MPI_Iprobe");
    return flag != 0;
  }
  /// The rank for which `await` waits, or -1. Any thread may call this.
  [[nodiscard]] int waiting_for() const noexcept { return waiting_for_.load(std::memory_order_relaxed); }
  /// Dissemination: in step k an empty message comes from the rank 2^k before this one. (D. Hensgen, R. Finkel, U.
  /// Manber, "Two algorithms for barrier synchronization", 1988.) It uses messages instead of MPI_Barrier, because
  /// their waits have a deadline.
  void barrier(std::string_view operation) {
    usable();
    for (int distance = 1; distance < size_; distance *= 2) {
      transfer(operation, nullptr, 0, (rank_ + distance) % size_, nullptr, 0, (rank_ + size_ - distance) % size_,
               barriers);
    }
  }

  /// Waits until `done()`, which polls MPI; after the first polls it yields the CPU in between. At the deadline it ends
  /// the group, calls `drop()` and throws a timeout that names the rank `silent()` (-1: unknown).
  template <class Done, class Silent, class Drop>
  void await(std::string_view operation, Done done, Silent silent, Drop drop) {
    if (spin({.looks = agreed_.oversubscribed ? options_.oversubscribed_polls : options_.polls}, done)) return;
    struct clearing {
      std::atomic<int>& what;
      ~clearing() { what.store(-1, std::memory_order_relaxed); }
    } const at_end{waiting_for_};
    backoff rest(paces::mpi);
    for (const auto started = clock::now();;) {
      waiting_for_.store(silent(), std::memory_order_relaxed);
      rest.step();
      if (done()) return;
      if (interruption_) end_interrupted(operation, drop);
      if (options_.timeout.count() <= 0 || clock::now() - started <= options_.timeout) continue;
      const int peer = silent();
      drop();
      mpi_process::give_up();
      const std::string who = peer < 0 ? "some rank" : "rank " + std::to_string(peer);
      failed_.emplace(error_kind::timeout,
                      std::string(operation) + " on " + label_ + ": " + who + " did not answer within " +
                          std::to_string(options_.timeout.count()) +
                          " s (raise HVD_TIMEOUT or mpi_options::timeout if it is only slow)",
                      peer);
      throw error(*failed_);
    }
  }

  // Tags, so that a barrier or a collective made of messages does not take a message that waits for `recv`.
  static constexpr int messages = 0, barriers = 1, collectives = 2;

  /// Starts a message. The caller waits for `r`.
  void post_send(std::string_view operation, const std::byte* data, std::size_t bytes, int to, int tag,
                 MPI_Request& r) {
    const mpi_bytes what(bytes, options_.most);
    check(MPI_Isend(data, what.count(), what.type(), to, tag, comm_, &r), operation, "MPI_Isend");
  }
  void post_recv(std::string_view operation, std::byte* data, std::size_t bytes, int from, int tag, MPI_Request& r) {
    const mpi_bytes what(bytes, options_.most);
    check(MPI_Irecv(data, what.count(), what.type(), from, tag, comm_, &r), operation, "MPI_Irecv");
  }

 private:
  /// A message on its way; on its way out, unless it is an `incoming`.
  struct transmission {
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_SUCCESS;

    /// True if it is complete or has failed; polls MPI.
    bool done() {
      int flag = 1;
      if (code == MPI_SUCCESS && request != MPI_REQUEST_NULL) code = MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
      return flag != 0 || code != MPI_SUCCESS;
    }
    /// Cancels the message, which may fail while its peer reads or writes it. Waits at most 100 ms for the outcome,
    /// because the peer may be lost.
    void drop() {
      if (done()) return;
      MPI_Cancel(&request);
      wait_until(clock::now() + std::chrono::milliseconds(100), paces::mpi, [&] { return done(); });
    }
  };
  /// A message on its way in. It is matched before it is received, so that its length is known: an MPI_Irecv that it
  /// overflows ends the program in MPICH 4.0 and writes beyond its buffer in Open MPI 4.1.
  struct incoming : transmission {
    bool matched = false;
    MPI_Count length = 0;
    std::vector<std::byte> dropped;

    /// Starts to receive it, if it has arrived and is not yet matched. True if it is matched or has failed.
    bool match(MPI_Comm comm, std::byte* data, std::size_t expected, int from, int tag, std::size_t most) {
      if (matched) return true;
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      int flag = 0;
      code = MPI_Improbe(from, tag, comm, &flag, &message, &status);
      matched = flag != 0 || code != MPI_SUCCESS;
      if (flag == 0 || code != MPI_SUCCESS) return matched;
      MPI_Get_elements_x(&status, MPI_BYTE, &length);
      const auto bytes = static_cast<std::size_t>(length);
      if (bytes != expected) dropped.resize(bytes);
      const mpi_bytes what(bytes, most);
      code = MPI_Imrecv(bytes == expected ? data : dropped.data(), what.count(), what.type(), &message, &request);
      return true;
    }
  };

  template <class Drop>
  [[noreturn]] void end_interrupted(std::string_view operation, const Drop& drop) {
    drop();
    mpi_process::give_up();
    failed_.emplace(error_kind::aborted, std::string(operation) + " on " + label_ + ": this rank has given up", rank_);
    throw error(*failed_);
  }
  [[noreturn]] void fail(error_kind kind, std::string_view operation, const std::string& why, int culprit = -1) const {
    throw error(kind, std::string(operation) + " on " + label_ + ": " + why, culprit);
  }
  void begin(std::string_view operation, int a, int b) const {
    usable();
    for (const int peer : {a, b}) {
      if (peer >= 0 && peer < size_) continue;
      fail(error_kind::invalid_argument, operation,
           "there is no rank " + std::to_string(peer) + "; allowed: 0 to " + std::to_string(size_ - 1));
    }
  }

  /// Sends if `to` is a rank, receives if `from` is one, both at once.
  void transfer(std::string_view operation, const std::byte* out, std::size_t out_bytes, int to, std::byte* in,
                std::size_t in_bytes, int from, int tag) {
    transmission sending;
    incoming receiving;
    if (to >= 0) post_send(operation, out, out_bytes, to, tag, sending.request);
    bool sent = false, received = from < 0;
    await(
        operation,
        [&] {
          received = received || (receiving.match(comm_, in, in_bytes, from, tag, options_.most) && receiving.done());
          sent = sent || sending.done();
          return sent && received;
        },
        [&] { return received ? to : from; },
        [&] {
          receiving.drop();
          sending.drop();
        });
    check(sending.code, operation, "MPI_Isend");
    check(receiving.code, operation, "MPI_Imrecv");
    if (from < 0 || receiving.length == static_cast<MPI_Count>(in_bytes)) [[likely]]
      return;
    fail(error_kind::mismatch, operation,
         "expected " + std::to_string(in_bytes) + " bytes from rank " + std::to_string(from) + " but it sent " +
             std::to_string(receiving.length) + "; the message was dropped",
         from);
  }

  /// Queues a message to itself, because no MPI completes its send before it is received.
  void keep(const std::byte* data, std::size_t bytes) { own_.emplace_back(data, data + bytes); }
  void take(std::string_view operation, std::byte* data, std::size_t bytes) {
    if (own_.empty()) {
      fail(error_kind::invalid_argument, operation,
           "no message to itself was sent before, and nobody else can send one");
    }
    const std::vector<std::byte> message = std::move(own_.front());
    own_.pop_front();
    if (message.size() != bytes) {
      fail(error_kind::mismatch, operation,
           "expected " + std::to_string(bytes) + " bytes from itself but they were " + std::to_string(message.size()) +
               "; the message was dropped",
           rank_);
    }
    copy_bytes(data, message.data(), bytes);
  }

  MPI_Comm comm_;
  mpi_options options_;
  mpi_agreement agreed_;
  int rank_ = 0;
  int size_ = 1;
  std::string label_;
  std::atomic<int> waiting_for_ = -1;
  std::deque<std::vector<std::byte>> own_;
  interruption interruption_;
  std::optional<error> failed_;
};

}  // namespace detail
}  // namespace hvd::inline HVD_ABI
