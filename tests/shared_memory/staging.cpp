// tests/shared_memory/staging.cpp: where chunks lie in the staging ring, and when a place is known to be free.
#include <hvd/shared_memory/staging.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

using hvd::detail::staging_page;
using hvd::detail::staging_place;
using hvd::detail::staging_plan;
using hvd::detail::staging_ring;

namespace {

bool at(const staging_place& p, std::uint64_t turn, std::size_t pages) {
  return p.turn == turn && p.at == pages * staging_page;
}

}  // namespace

TEST_CASE("chunks lie behind each other, each on pages of its own") {
  staging_ring ring(12 * staging_page + 100);
  CHECK(ring.bytes() == 12 * staging_page);
  CHECK(ring.largest_place() == 4 * staging_page);
  const staging_plan a = ring.plan(3, 1);
  CHECK(a.room == staging_page);
  CHECK((at(a[0], 0, 0) && at(a[1], 0, 1) && at(a[2], 0, 2)));
  ring.take(a);
  const staging_plan b = ring.plan(2, staging_page + 1);
  CHECK(b.first == 3);
  CHECK((at(b[0], 0, 4) && at(b[1], 0, 6)));  // the third and fourth of all places of two pages
  ring.take(b);
  const staging_plan c = ring.plan(2, 3 * staging_page);
  CHECK((at(c[0], 0, 9) && at(c[1], 1, 0)));
  CHECK(c.lap == 4);
  CHECK(ring.plan(5, staging_page)[4].at == 0);
  CHECK(at(ring.plan(4, staging_page)[3], 0, 11));
}

// So ranks that swap with each turn write what they have read.
TEST_CASE("in operations of one size every place is used once in each turn") {
  for (const std::uint64_t chunks : std::initializer_list<std::uint64_t>{1, 2, 3, 4, 5, 7, 100}) {
    for (const std::size_t pages : std::initializer_list<std::size_t>{1, 2, 3, 4, 5}) {
      staging_ring ring(16 * staging_page);
      std::vector<std::uint64_t> last(16, 0);
      for (int operation = 0; operation != 40; ++operation) {
        const staging_plan p = ring.plan(chunks, pages * staging_page);
        for (std::uint64_t k = 0; k != chunks; ++k) {
          CHECK(p[k].turn == last[p[k].at / staging_page]++);
        }
        ring.take(p);
      }
    }
  }
}

TEST_CASE("more chunks than the ring holds go around it") {
  staging_ring ring(12 * staging_page);
  ring.take(ring.plan(1, 1));
  const staging_plan p = ring.plan(100, 5 * staging_page - 1);
  CHECK(p.lap == 2);
  CHECK((at(p[0], 0, 5) && at(p[1], 1, 0) && at(p[2], 1, 5) && at(p[99], 50, 0)));
  ring.take(p);
  CHECK(at(ring.plan(1, 1)[0], 50, 5));
  CHECK(ring.plan(1, 1).first == 101);
}

TEST_CASE("no chunks take no place") {
  staging_ring ring(12 * staging_page);
  ring.take(ring.plan(1, 1));
  const staging_plan none = ring.plan(0, 0);
  CHECK(!ring.is_free(none));
  ring.take(none);
  CHECK(at(ring.plan(1, 1)[0], 0, 1));
  CHECK(ring.plan(1, 1).first == 1);
}

// Against a record of who used what: an operation's places are free before it begins if all that used them lie before
// the operation before, which all ranks are known to have begun.
TEST_CASE("a place is free when nobody can be reading it any more") {
  std::mt19937 dice(7);
  for (int trial = 0; trial != 50; ++trial) {
    const std::size_t pages = 6 + dice() % 40;
    staging_ring ring(pages * staging_page);
    std::vector<int> user(pages, -2);  // the last operation that used a page
    int known = -1, free = 0;          // all operations up to `known` are completed
    for (int operation = 0; operation != 400; ++operation) {
      const std::size_t room = 1 + dice() % (pages / 3);
      const std::uint64_t chunks = dice() % (dice() % 4 == 0 ? 40 : 4);
      const staging_plan p = ring.plan(chunks, room * staging_page);
      if (chunks != 0 && ring.is_free(p)) {
        ++free;
        const auto first = user.begin() + static_cast<std::ptrdiff_t>(p[0].at / staging_page);
        CHECK(std::all_of(first, first + static_cast<std::ptrdiff_t>(room), [&](int o) { return o <= known; }));
      }
      if (dice() % 5 != 0) {  // an exchange in which this rank heard everybody
        ring.all_began();
        known = operation - 1;
      } else if (chunks != 0) {
        continue;  // nothing is staged without such an exchange
      }
      for (std::uint64_t k = 0; k != chunks; ++k) {
        const staging_place place = p[k];
        CHECK(place.at + p.room <= ring.bytes());
        for (std::size_t i = 0; i != room; ++i) user[place.at / staging_page + i] = operation;
        if (k >= p.lap) CHECK((place.at == p[k - p.lap].at && place.turn == p[k - p.lap].turn + 1));
      }
      ring.take(p);
    }
    CHECK(free > 20);
  }
}

TEST_CASE("the ring's size follows from the caches, the ranks and the memory that was asked for") {
  constexpr std::size_t mib = std::size_t{1} << 20;
  const auto g = hvd::detail::make_geometry(2, mib);
  CHECK(hvd::detail::ring_size(g, {mib, 0}, 2) == 192 << 10);
  CHECK(hvd::detail::ring_size(g, {2 * mib, 0}, 2) == 384 << 10);
  CHECK(hvd::detail::ring_size(g, {}, 2) == 192 << 10);
  CHECK(hvd::detail::ring_size(g, {64 * mib, 0}, 2) == g.ring_bytes);
  const auto more = hvd::detail::make_geometry(2, 8 * mib);
  CHECK(hvd::detail::ring_size(more, {mib, 0}, 2) == more.ring_bytes);
  // Three chunks with a page for each of many ranks.
  CHECK(hvd::detail::ring_size(hvd::detail::make_geometry(48, mib), {}, 48) == 48 * 3 * staging_page);
}
