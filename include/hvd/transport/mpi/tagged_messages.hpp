// hvd/transport/mpi/tagged_messages.hpp: tagged messages over an MPI, which does the matching.
#pragma once

#include <hvd/detail/function_ref.hpp>
#include <hvd/detail/tagged_message.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/error.hpp>
#include <hvd/transport/mpi/group.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Takes over a communicator with MPI_ERRORS_RETURN that has no other user. MPI does not report lost ranks: its
/// launcher ends the job, or deadlines end the waits.
class mpi_messages final : public message_channel {
 public:
  using message = tagged_message;
  using clock = message::clock;

  explicit mpi_messages(MPI_Comm own) : comm_(own) {
    int* most = nullptr;
    int found = 0;
    MPI_Comm_get_attr(comm_, MPI_TAG_UB, &most, &found);
    if (found != 0 && most != nullptr) most_tag_ = *most;
  }
  ~mpi_messages() override {
    int finalized = 0;
    // After a failure, MPI may wait for the other ranks there.
    if (idle() && MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) MPI_Comm_free(&comm_);
  }

  void post(std::shared_ptr<message> m) override {
    const int tag = tag_of(m->tag);
    transfer t{std::move(m), MPI_REQUEST_NULL, tag, {}};
    if (t.what->sends) {
      const mpi_bytes bytes(t.what->bytes, INT_MAX);
      check(MPI_Isend(t.what->data, bytes.count(), bytes.type(), t.what->peer, tag, comm_, &t.request), "MPI_Isend");
    }
    all_.push_back(std::move(t));
  }
  [[nodiscard]] bool idle() const noexcept override { return all_.empty(); }
  bool progress() override {
    if (aborted_) throw error(error_kind::aborted, "messages over MPI: this rank has given up");
    bool moved = false;
    const clock::time_point now = clock::now();
    for (auto t = all_.begin(); t != all_.end();) {
      if (match(*t) && complete(*t)) {
        moved = true;
        t = all_.erase(t);
      } else if (t->what->deadline <= now) {
        expire(*t);
        moved = true;
        t = all_.erase(t);
      } else {
        ++t;
      }
    }
    return moved;
  }
  /// Short: a step of a wait, which begins again after a sleep.
  void wait(function_ref<bool()> woken) override {
    if (rest_.yield()) return;
    if (!woken()) nap(rest_.sleep());
    rest_ = backoff(paces::tagged);
  }
  void wake() noexcept override {}
  void abort() noexcept override { aborted_ = true; }
  void fail_all(const error& why) override {
    for (transfer& t : all_) {
      drop(t);
      t.what->fail(why);
    }
    all_.clear();
  }

 private:
  struct transfer {
    std::shared_ptr<message> what;
    MPI_Request request;
    int tag;
    std::vector<std::byte> dropped;  // for a message of another length
    bool matched = false;
    MPI_Count length = 0;
  };

  /// The highest tag is reserved for hvd.
  [[nodiscard]] int tag_of(std::int64_t tag) const {
    if (tag < 0) return most_tag_;
    if (tag >= most_tag_) {
      fail(error_kind::invalid_argument,
           {"tag ", tag, " is beyond what this MPI takes; allowed: 0 to ", most_tag_ - 1});
    }
    return static_cast<int>(tag);
  }
  static void check(int code, const char* function) {
    if (code != MPI_SUCCESS) {
      fail(mpi_error_kind(code), {function, " failed: ", mpi_text(code)});
    }
  }
  /// Whether MPI moves the message. A receive is matched first, so that its length is known.
  bool match(transfer& t) {
    message& m = *t.what;
    if (m.sends || t.matched) return true;
    MPI_Message found = MPI_MESSAGE_NULL;
    MPI_Status status;
    int flag = 0;
    check(MPI_Improbe(m.peer < 0 ? MPI_ANY_SOURCE : m.peer, t.tag, comm_, &flag, &found, &status), "MPI_Improbe");
    if (flag == 0) return false;
    t.matched = true;
    m.source = status.MPI_SOURCE;
    MPI_Get_elements_x(&status, MPI_BYTE, &t.length);
    const auto bytes = static_cast<std::size_t>(t.length);
    if (bytes != m.bytes) t.dropped.resize(bytes);
    const mpi_bytes what(bytes, INT_MAX);
    check(MPI_Imrecv(bytes == m.bytes ? m.data : t.dropped.data(), what.count(), what.type(), &found, &t.request),
          "MPI_Imrecv");
    return true;
  }
  static bool complete(transfer& t) {
    int flag = 0;
    check(MPI_Test(&t.request, &flag, MPI_STATUS_IGNORE), "MPI_Test");
    if (flag == 0) return false;
    message& m = *t.what;
    if (m.sends || t.length == static_cast<MPI_Count>(m.bytes)) {
      m.end();
    } else {
      m.fail({error_kind::mismatch,
              joined({"recv: expected ", m.bytes, " bytes from rank ", m.source, " but it sent ",
                      static_cast<std::size_t>(t.length), "; the message was dropped"}),
              m.source});
    }
    return true;
  }
  static void drop(transfer& t) noexcept {
    if (t.request == MPI_REQUEST_NULL) return;
    MPI_Cancel(&t.request);
    MPI_Request_free(&t.request);
  }
  static void expire(transfer& t) {
    drop(t);
    message& m = *t.what;
    const std::string who = m.peer < 0 ? std::string("any rank") : joined({"rank ", m.peer});
    m.fail({error_kind::timeout,
            joined({m.sends ? "send" : "recv", ": Timed out waiting for ", m.sends ? "" : "a message from ", who,
                    m.sends ? " to receive" : "", " with tag ", m.tag}),
            m.peer});
  }

  MPI_Comm comm_;
  int most_tag_ = 32767;
  std::list<transfer> all_;  // in posting order
  backoff rest_{paces::tagged};
  std::atomic<bool> aborted_{false};
};

}  // namespace hvd::inline HVD_ABI::detail
