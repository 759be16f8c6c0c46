// tests/campaign/fuzz/watch.cpp: questions and answers of the watches for stalls, as any peer may send them.
//
// Each input has a watch with its thread to itself, from a store of those that have begun, because that takes some
// milliseconds. An input is the messages that arrive, and when the thread stops to read and looks: seldom, as it waits
// for as long then.
// Findings besides those of fuzz.hpp: an answer to nobody, and a report of ranks that there are not.
#include <hvd/engine/watch.hpp>

#include "fuzz.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

namespace {

constexpr int ranks = 3;
constexpr std::size_t number_at = 4;  // of the question that a message is about

/// What the harness and the watch's thread share. One of the two goes on while the other waits.
struct desk {
  std::mutex mutex;
  std::condition_variable changed;
  fuzz::input* in = nullptr;  // not null: the thread's turn
  int silences = 0;           // how often it may still find nothing from a peer
  bool alive = true, closing = false;
  bool stalled = false;            // this rank has operations in flight
  std::uint32_t asked = 0;         // number of the last question
  const hvd::engine_options opts;  // times are short, so that a look does not wait long

  explicit desk(hvd::engine_options o) : opts(std::move(o)) {}

  void hand_over(fuzz::input& input) {
    std::unique_lock lock(mutex);
    in = &input;
    changed.notify_all();
    changed.wait(lock, [&] { return in == nullptr || !alive; });
    in = nullptr;
    closing = true;
    changed.notify_all();
  }
};

struct wire {
  std::shared_ptr<desk> at;

  [[nodiscard]] int rank() const { return 1; }
  [[nodiscard]] int size() const { return ranks; }
  void barrier() {}
  wire split(int, int) { return *this; }
  void check() {}
  bool arrived(int) {
    struct farewell {
      std::shared_ptr<desk> at;
      ~farewell() {
        const std::lock_guard lock(at->mutex);
        at->alive = false;
        at->changed.notify_all();
      }
    };
    thread_local const farewell said{at};
    std::unique_lock lock(at->mutex);
    at->changed.wait(lock, [&] { return at->in != nullptr || at->closing; });
    if (at->closing) throw hvd::error(hvd::error_kind::peer_lost, "the group ends", 0);
    if (at->in->ended()) {
      at->in = nullptr;  // the harness's turn
      at->changed.notify_all();
      at->changed.wait(lock, [&] { return at->closing; });
      throw hvd::error(hvd::error_kind::peer_lost, "the group ends", 0);
    }
    if (at->in->below(8) != 0 || at->silences == 0) return true;
    --at->silences;
    return false;
  }
  void recv(std::byte* data, std::size_t bytes, int) {
    const std::lock_guard lock(at->mutex);
    const bool expected = at->in->below(2) == 0;
    std::string text(at->in->text(1 + at->in->below(200)));
    text.resize(bytes);
    if (expected) std::memcpy(text.data() + number_at, &at->asked, sizeof at->asked);
    std::copy(text.begin(), text.end(), reinterpret_cast<char*>(data));
  }
  void send(const std::byte* data, std::size_t bytes, int peer) {
    fuzz::require(0 <= peer && peer < ranks && peer != rank(), "a message to nobody");
    fuzz::require(bytes >= number_at + sizeof at->asked, "a message of nothing");
    const std::lock_guard lock(at->mutex);
    if (*data == std::byte{0}) std::memcpy(&at->asked, data + number_at, sizeof at->asked);  // a question
  }
  void exchange(const std::byte*, std::size_t, int, std::byte*, std::size_t, int) {}
};
static_assert(hvd::Probing<wire>);

/// The watch, and what it watches: two operations, in flight for an hour, of which one has a long name.
struct stage {
  std::shared_ptr<desk> at;
  std::unique_ptr<hvd::detail::stall_watch> watch;

  stage() {
    hvd::engine_options o;
    o.stall_warning = std::chrono::milliseconds(20);
    o.report = [](const std::string& text) {
      for (const char* const none : {"rank 3", "rank -", "ranks -", "-1"}) {
        fuzz::require(text.find(none) == std::string::npos || text.find("waiting for") != std::string::npos, "no rank");
      }
    };
    at = std::make_shared<desk>(std::move(o));
    hvd::detail::watched what;
    desk* const d = at.get();
    what.list = [d]() -> std::vector<hvd::detail::pending_operation> {
      if (!d->stalled) return {};
      const auto since = std::chrono::steady_clock::now() - std::chrono::hours(1);
      return {{"grad", "allreduce", 0, since}, {std::string(300, 'n'), "broadcast", 2, since}};
    };
    what.state = [](int) { return hvd::detail::driver_state{}; };
    what.ranks = [](int set) { return set == 0 ? std::vector{0, 1, 2} : std::vector{0, 1}; };
    what.blame = [](int) { return -1; };
    what.give_up = [](const hvd::error&) {};
    watch = std::make_unique<hvd::detail::stall_watch>(
        std::make_unique<hvd::detail::erased_transport_of<wire>>(wire{at}), at->opts, std::move(what));
  }
};

}  // namespace

FUZZ(in) {
  static std::deque<std::unique_ptr<stage>>& ready = *new std::deque<std::unique_ptr<stage>>;  // has threads at the end
  while (ready.size() < 64) ready.push_back(std::make_unique<stage>());
  const std::unique_ptr<stage> now = std::move(ready.front());
  ready.pop_front();
  const unsigned how = in.below(64);
  {
    const std::lock_guard lock(now->at->mutex);
    now->at->silences = how % 32 == 0 ? 4 : 0;
    now->at->stalled = how < 48;
  }
  now->at->hand_over(in);
}
