#include <hvd/shared_memory/peer_memory.hpp>

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using hvd::error_kind;
using hvd::detail::group_header;
using hvd::detail::peer_memory;
using hvd::detail::phase;
using hvd::detail::shared_block;
using namespace std::chrono_literals;

// The memory of a group on the heap, and what says who lives.
class memory {
 public:
  explicit memory(int size, std::size_t staging = 64 << 10)
      : size_(size), shape_(hvd::detail::make_geometry(size, staging)), bytes_(hvd::detail::group_bytes(size, shape_)),
        data_(static_cast<std::byte*>(::operator new(bytes_, std::align_val_t{4096}))) {
    std::memset(data_, 0, bytes_);
    auto* const h = new (data_) group_header;
    h->size = size;
    h->windows = shape_;
    h->total_bytes = bytes_;
    for (std::atomic<bool>& a : alive_) a = true;
  }
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;
  ~memory() { ::operator delete(data_, std::align_val_t{4096}); }

  int size() const { return size_; }
  const hvd::detail::geometry& shape() const { return shape_; }
  group_header& header() { return *reinterpret_cast<group_header*>(data_); }
  peer_memory::liveness live() {
    peer_memory::liveness l;
    l.alive = [](void* self, int peer) -> bool {
      return static_cast<memory*>(self)->alive_[static_cast<std::size_t>(peer)];
    };
    l.context = this;
    return l;
  }
  void kill(int rank) { alive_[static_cast<std::size_t>(rank)] = false; }

 private:
  int size_;
  hvd::detail::geometry shape_;
  std::size_t bytes_;
  std::byte* data_;
  std::array<std::atomic<bool>, 8> alive_{};
};

hvd::failure_policy within(std::chrono::duration<double> timeout) {
  hvd::failure_policy f;
  f.timeout = timeout;
  f.check = false;
  return f;
}

peer_memory rank_of(memory& m, int rank, std::chrono::duration<double> timeout = 30s) {
  return {m.header(), m.size(), m.shape(), rank, "rank " + std::to_string(rank), {}, within(timeout), m.live()};
}

template <class F>
hvd::error caught(F&& f) {
  try {
    f();
  } catch (const hvd::error& e) {
    return e;
  }
  return {error_kind::unsupported, "no error"};
}

TEST_CASE("windows and their parts lie apart, inside the group's memory") {
  for (const int size : {1, 2, 3, 8, 64}) {
    for (const std::size_t staging : {std::size_t{256} << 10, std::size_t{1} << 20, (std::size_t{3} << 20) + 12345}) {
      CAPTURE(size);
      CAPTURE(staging);
      const auto g = hvd::detail::make_geometry(size, staging);
      CHECK(g.window_bytes + hvd::detail::header_bytes <= staging);
      CHECK(g.mailboxes_at >= sizeof(hvd::detail::control));
      CHECK(g.channels_at >= g.mailboxes_at + 2 * sizeof(hvd::detail::mailbox));
      CHECK(g.ring_at >= g.channels_at);
      CHECK(g.ring_at % hvd::detail::staging_page == 0);
      CHECK(g.ring_at + g.ring_bytes <= g.window_bytes);
      const auto ring = hvd::detail::ring_size(g, {std::size_t{1} << 20, 0}, size);
      CHECK(ring <= g.ring_bytes);
      CHECK(hvd::detail::staging_ring(ring).largest_place() >= static_cast<std::size_t>(size) * 64);
      CHECK(hvd::detail::group_bytes(size, g) <= static_cast<std::size_t>(size) * staging);
    }
  }
}

TEST_CASE("a wait ends when the word has grown, however long the waiter has slept") {
  memory m(2);
  auto a = rank_of(m, 0), b = rank_of(m, 1);
  for (const auto delay : {0ms, 1ms, 30ms}) {
    const std::uint64_t next = b.mine().staged.value.load() + 1;
    std::thread other([&] {
      std::this_thread::sleep_for(delay);
      b.store(b.mine().staged.value, next);
    });
    CHECK(a.await(b.mine().staged.value, next, 1, phase::stage) == next);
    other.join();
    CHECK(b.mine().doorbell.sleepers == 0);
  }
}

TEST_CASE("a store wakes who sleeps until it comes, long before the limit of the sleep") {
  memory m(2);
  const hvd::waiting_policy asleep{.yields = 0, .sleep = 20s};
  peer_memory a(m.header(), m.size(), m.shape(), 0, "rank 0", asleep, within(60s), m.live());
  auto b = rank_of(m, 1);
  std::thread other([&] {
    while (b.mine().doorbell.sleepers == 0) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(50ms);  // it sleeps by now; else it finds the store by itself
    b.store(b.mine().staged.value, 1);
  });
  const auto start = std::chrono::steady_clock::now();
  CHECK(a.await(b.mine().staged.value, 1, 1, phase::stage) == 1);
  CHECK(std::chrono::steady_clock::now() - start < 10s);
  other.join();
}

TEST_CASE("what has been stored counts though the peer is gone") {
  memory m(2);
  auto a = rank_of(m, 0), b = rank_of(m, 1);
  b.store(b.mine().done.value, 5);
  m.kill(1);
  CHECK(a.await(b.mine().done.value, 5, 1, phase::finish) == 5);
  const hvd::error e = caught([&] { a.await(b.mine().done.value, 6, 1, phase::finish); });
  CHECK(e.kind() == error_kind::peer_lost);
  CHECK(e.rank() == 1);
  CHECK(std::string(e.what()).ends_with(
      "rank 1 has exited or was killed; was waiting for rank 1 to finish the call before"));
}

TEST_CASE("a peer that left, an abort and a deadline each end a wait, with their own words") {
  memory m(3);
  {
    auto a = rank_of(m, 0), b = rank_of(m, 1), c = rank_of(m, 2);
    c.mine().self.state = hvd::detail::presence::left;
    a.enter("allreduce");
    const hvd::error left = caught([&] { a.await(c.mine().staged.value, 1, 2, phase::stage); });
    CHECK(left.kind() == error_kind::peer_lost);
    CHECK(left.rank() == 2);
    // Rank 1 waits for somebody else and hears the same.
    b.enter("reduce");
    const hvd::error heard = caught([&] { b.await(a.mine().staged.value, 1, 0, phase::reduce); });
    CHECK(heard.kind() == error_kind::peer_lost);
    CHECK(heard.rank() == 2);
    CHECK(
        std::string(heard.what()) ==
        "hvd: reduce on rank 1: rank 2 has exited or was killed, as rank 0 found; was waiting for rank 0 to reduce its "
        "slice");
    const hvd::error then = caught([&] { b.enter("barrier"); });
    CHECK(then.kind() == error_kind::peer_lost);
    CHECK(then.rank() == 2);
    CHECK(std::string(then.what()) == "hvd: barrier on rank 1: the group failed before and cannot be used: reduce on "
                                      "rank 1: rank 2 has exited or was "
                                      "killed, as rank 0 found; was waiting for rank 0 to reduce its slice");
  }
  memory fresh(3);
  auto a = rank_of(fresh, 0, 50ms), b = rank_of(fresh, 1, 50ms);
  a.enter("gather");
  const hvd::error late = caught([&] { a.await(b.mine().staged.value, 1, 1, phase::stage); });
  CHECK(late.kind() == error_kind::timeout);
  CHECK(late.rank() == 1);
  CHECK(std::string(late.what()).find("gather on rank 0: rank 1 did not answer within 0.05") != std::string::npos);
}

TEST_CASE(
    "a wait ends when somebody has given up, though it would soon be over and it is not time to look at the peer") {
  memory m(3);
  hvd::failure_policy seldom = within(3600s);
  seldom.look_every = 3600s;
  peer_memory a{m.header(), m.size(), m.shape(), 0, "rank 0", {}, seldom, m.live()};
  auto b = rank_of(m, 1), c = rank_of(m, 2);
  c.set_abort(error_kind::peer_lost, 2);
  std::atomic<bool> over = false;
  std::thread other([&] {  // what would end the wait, if it did not look
    for (int i = 0; i != 500 && !over; ++i) std::this_thread::sleep_for(10ms);
    b.store(b.mine().staged.value, 1);
  });
  const hvd::error e = caught([&] { a.await(b.mine().staged.value, 1, 1, phase::stage); });
  over = true;
  other.join();
  CHECK(e.kind() == error_kind::peer_lost);
  CHECK(e.rank() == 2);
}

TEST_CASE("a rank that another one has given up waiting for is told so, and not of itself as of somebody else") {
  memory m(3);
  auto a = rank_of(m, 0, 50ms), b = rank_of(m, 1, 50ms), c = rank_of(m, 2, 50ms);
  for (peer_memory* const p : {&a, &b, &c}) p->enter("send");
  const std::string hint = "; a send may wait for its recv: if two ranks both send first, use exchange";
  const std::string slow = " (raise HVD_TIMEOUT or failure_policy::timeout if it is only slow)";
  const hvd::error first = caught([&] { a.await(b.mine().staged.value, 1, 1, phase::receive); });
  CHECK(first.what() == "hvd: send on rank 0: rank 1 did not answer within 0.05 s" + slow +
                            "; was waiting for rank 1 to receive" + hint);
  const hvd::error blamed = caught([&] { b.await(a.mine().staged.value, 1, 0, phase::receive); });
  CHECK(blamed.rank() == 1);
  CHECK(blamed.what() == "hvd: send on rank 1: rank 0 waited 0.05 s for this rank to receive" + slow +
                             "; was waiting for rank 0 to receive" + hint);
  const hvd::error third = caught([&] { c.await(a.mine().staged.value, 1, 0, phase::receive); });
  CHECK(third.what() == "hvd: send on rank 2: rank 1 did not answer within 0.05 s" + slow +
                            ", as rank 0 found; was waiting for rank 0 to receive" + hint);
}

TEST_CASE("an exception between enter and leave ends the group; after leave it does not") {
  memory m(2);
  auto a = rank_of(m, 0), b = rank_of(m, 1);
  try {
    peer_memory::scope scope(a, "allreduce");
    scope.leave();
    throw 1;
  } catch (int) {
  }
  CHECK(m.header().abort.value == 0);
  try {
    const peer_memory::scope scope(a, "allreduce");
    throw 1;
  } catch (int) {
  }
  const hvd::error e = caught([&] { b.await(a.mine().staged.value, 1, 0, phase::stage); });
  CHECK(e.kind() == error_kind::aborted);
  CHECK(e.rank() == 0);
}

TEST_CASE("who holds up others: the first that does not wait, or is stopped while it waits") {
  memory m(5);
  std::vector<std::unique_ptr<peer_memory>> board;
  for (int r = 0; r != 5; ++r) {
    board.push_back(std::make_unique<peer_memory>(m.header(), 5, m.shape(), r, "rank", hvd::waiting_policy{},
                                                  within(30s), m.live()));
  }
  CHECK(board[0]->waits().responsible(1) == 1);
  board[1]->waits().begin(2);
  board[2]->waits().begin(3);
  CHECK(board[0]->waits().responsible(1) == 1);  // it does not look up: it is stopped
  std::atomic<bool> stop{false};
  std::thread looking([&] {
    while (!stop) {
      for (int r = 1; r != 4; ++r) board[static_cast<std::size_t>(r)]->waits().look();
      std::this_thread::sleep_for(1ms);
    }
  });
  CHECK(board[0]->waits().responsible(1) == 3);
  board[3]->waits().begin(4);
  CHECK(board[0]->waits().responsible(1) == 4);
  board[3]->waits().begin(0);  // all wait for each other
  CHECK(board[0]->waits().responsible(1) == 1);
  board[3]->waits().begin(1);
  CHECK(board[0]->waits().responsible(1) == 1);
  board[0]->of(3).self.waits.waits_for = 0xffffffff;  // corrupt
  CHECK(board[0]->waits().responsible(1) == 3);
  board[0]->of(3).self.waits.waits_for = 77;
  CHECK(board[0]->waits().responsible(1) == 3);
  stop = true;
  looking.join();
}

TEST_CASE("the first reason stays") {
  memory m(3);
  auto a = rank_of(m, 0), b = rank_of(m, 1);
  a.set_abort(error_kind::no_memory, 2);
  b.set_abort(error_kind::timeout, 0);
  const hvd::error e = caught([&] { b.give_up(error_kind::timeout, 0, phase::stage); });
  CHECK(e.kind() == error_kind::no_memory);
  CHECK(e.rank() == 2);
}

TEST_CASE(
    "whatever another process writes as a reason, the error has a kind, a rank of the group or none, and a text") {
  std::mt19937_64 dice(1);
  for (int round = 0; round != 2'000; ++round) {
    memory m(3);
    peer_memory rank = rank_of(m, 1);
    rank.enter("allreduce");
    const std::uint64_t reason = round == 0 ? ~std::uint64_t{0} : dice() >> dice() % 64 | 1;
    m.header().abort.value = reason;
    const hvd::error e = caught([&] { rank.check_abort(2, phase::stage); });
    CAPTURE(reason);
    CHECK(e.kind() <= error_kind::aborted);
    CHECK(e.rank() >= -1);
    CHECK(e.rank() < 3);
    CHECK(std::string(e.what()).find("allreduce on rank 1") != std::string::npos);
  }
}

TEST_CASE("size and shape of a group are those that its ranks have checked, whatever the header says later") {
  memory m(2);
  peer_memory rank = rank_of(m, 0);
  m.header().size = 1 << 20;
  m.header().windows.window_bytes = std::uint64_t{1} << 40;
  CHECK(rank.size() == 2);
  CHECK(rank.window(1) - rank.window(0) == static_cast<std::ptrdiff_t>(m.shape().window_bytes));
}

TEST_CASE("exchanges by ranks of any speed are heard whole") {
  constexpr int ranks = 3;
  memory m(ranks);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int r = 0; r != ranks; ++r) {
    threads.emplace_back([&, r] {
      auto own = rank_of(m, r);
      constexpr std::size_t most = hvd::detail::mailbox::capacity;
      std::vector<std::byte> out(most);
      for (std::size_t i = 0; i != 400; ++i) {
        const std::size_t n = i * 37 % (most + 1);
        const auto value = [&](int rank) { return static_cast<std::byte>(i * 5 + static_cast<std::size_t>(rank)); };
        std::fill(out.begin(), out.end(), value(r));
        if (i % 50 == static_cast<std::size_t>(r)) std::this_thread::sleep_for(2ms);
        own.begin(static_cast<std::uint16_t>(n));
        own.publish(out.data(), n);
        // In some exchanges nobody hears everybody.
        for (int q = 0; q != ranks; ++q) {
          if (q == r || (i % 7 == 0 && q != 0)) continue;
          const std::byte* const in = own.read(q);
          for (std::size_t k = 0; k != n; ++k) wrong += in[k] != value(q);
        }
        if (i % 7 != 0) own.mark_all_read();
        own.end();
      }
    });
  }
  for (auto& t : threads) t.join();
  CHECK(wrong == 0);
}

TEST_CASE("another signature is a mismatch, on both sides") {
  memory m(2);
  auto a = rank_of(m, 0), b = rank_of(m, 1);
  a.begin(1);
  b.begin(2);
  a.publish(nullptr, 0);
  b.publish(nullptr, 0);
  for (auto* const rank : {&a, &b}) {
    const hvd::error e = caught([&] { rank->read(1 - rank->rank()); });
    CHECK(e.kind() == error_kind::mismatch);
    CHECK(std::string(e.what()).find("are in different calls") != std::string::npos);
  }
}

TEST_CASE("a buffer lies in a shared block if all of it does") {
  memory m(2);
  auto a = rank_of(m, 1);
  std::vector<std::byte> data(3 * 4096);
  a.add_block({1, data.data(), 4096, 4000});
  a.add_block({2, data.data() + 2 * 4096 - 4096, 4096, 4096});  // rank 1's part is the third page
  const std::byte* const part = data.data() + 4096;
  CHECK(a.find_block(part, 4000)->id == 1);
  CHECK(a.find_block(part + 3999, 1)->id == 1);
  CHECK(a.find_block(part, 4001) == nullptr);
  CHECK(a.find_block(part + 1, 4000) == nullptr);
  CHECK(a.find_block(part - 1, 1) == nullptr);
  CHECK(a.find_block(part + 4096, 4096)->id == 2);
  a.remove_block(1);
  CHECK(a.find_block(part, 1) == nullptr);
  CHECK(a.block(1) == nullptr);
  CHECK(a.block(2) != nullptr);
}

TEST_CASE("a process that was forked may not use it") {
  memory m(2);
  auto a = rank_of(m, 0);
  a.orphan();
  const hvd::error e = caught([&] { a.enter("broadcast"); });
  CHECK(e.kind() == error_kind::invalid_argument);
  CHECK(std::string(e.what()).find("broadcast on rank 0: this process was forked") != std::string::npos);
}

}  // namespace
