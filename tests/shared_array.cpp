// tests/shared_array.cpp: a move-only owner and a range.
#include <doctest/doctest.h>

#include <hvd/shared_array.hpp>

#include <memory>
#include <ranges>
#include <type_traits>
#include <utility>
#include <vector>

using array = hvd::shared_array<int>;
static_assert(!std::is_copy_constructible_v<array> && !std::is_copy_assignable_v<array>);
static_assert(std::is_nothrow_move_constructible_v<array> && std::is_nothrow_move_assignable_v<array>);
static_assert(std::ranges::contiguous_range<array> && std::ranges::sized_range<const array>);

namespace {

array counted(std::vector<int>& memory, int& released) {
  return {memory.data(), memory.size(), std::shared_ptr<void>(memory.data(), [&](void*) { ++released; })};
}

}  // namespace

TEST_CASE("an array reads and writes its elements") {
  std::vector<int> memory{1, 2, 3};
  int released = 0;
  array a = counted(memory, released);
  CHECK(a.size() == 3);
  CHECK(!a.empty());
  a[1] = 20;
  CHECK(std::as_const(a)[1] == 20);
  CHECK(std::vector<int>(std::as_const(a).begin(), std::as_const(a).end()) == std::vector<int>{1, 20, 3});
  CHECK(std::as_const(a).data() == memory.data());
}

TEST_CASE("memory is released once, by the last owner") {
  std::vector<int> memory{1}, other{2};
  int released = 0, other_released = 0;
  {
    array a = counted(memory, released);
    array b = std::move(a);
    CHECK(a.empty());
    CHECK(a.data() == nullptr);
    CHECK(released == 0);
    b = counted(other, other_released);
    CHECK(released == 1);
    CHECK(b[0] == 2);
  }
  CHECK(released == 1);
  CHECK(other_released == 1);
}
