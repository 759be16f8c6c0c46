// tests/buffer.cpp: what is a buffer, and which elements it has. (What is none: tests/compile_fail.)
#include <hvd/buffer.hpp>
#include <hvd/shared_array.hpp>

#include <doctest/doctest.h>

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <numeric>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

// Storage that is no range, with the door that buffer.hpp offers.
struct image {
  std::vector<std::uint16_t> pixels;
  int rows = 0;
};

struct no_range {};

}  // namespace

template <>
struct hvd::buffer_access<image> {
  static std::span<std::uint16_t> span(image& i) { return i.pixels; }
  static std::span<const std::uint16_t> span(const image& i) { return i.pixels; }
};

namespace {

// Whether `as_span` of a B& gives a std::span<E>.
template <class B, class E>
constexpr bool gives = std::is_same_v<decltype(hvd::as_span(std::declval<B&>())), std::span<E>>;

static_assert(gives<std::vector<float>, float>);
static_assert(gives<const std::vector<float>, const float>);
static_assert(gives<std::array<int, 3>, int>);
static_assert(gives<const std::array<int, 3>, const int>);
static_assert(gives<double[7], double>);
static_assert(gives<const double[7], const double>);
static_assert(gives<std::span<float>, float>);
static_assert(gives<const std::span<float>, float>);  // a const view of what may be written
static_assert(gives<std::span<const float>, const float>);
static_assert(gives<std::span<float, 4>, float>);
static_assert(gives<hvd::shared_array<hvd::half>, hvd::half>);
static_assert(gives<const hvd::shared_array<hvd::half>, const hvd::half>);
static_assert(gives<std::string, char>);
static_assert(gives<std::string_view, const char>);
static_assert(gives<bool[3], bool>);
static_assert(gives<std::vector<std::byte>, std::byte>);
static_assert(gives<image, std::uint16_t>);
static_assert(gives<const image, const std::uint16_t>);
static_assert(gives<std::ranges::subrange<float*>, float>);

static_assert(std::is_same_v<hvd::element_of<const std::vector<float>>, float>);
static_assert(std::is_same_v<hvd::element_of<std::span<const float>>, float>);
static_assert(std::is_same_v<hvd::element_of<std::span<float>&>, float>);
static_assert(std::is_same_v<hvd::element_of<const image&>, std::uint16_t>);
static_assert(std::is_same_v<hvd::element_of<std::complex<float>[2]>, std::complex<float>>);

// An overload is chosen by the concept; that a list is not contiguous is said in a sentence, later.
static_assert(hvd::Buffer<std::vector<float>> && hvd::Buffer<std::vector<float>&> && hvd::Buffer<const float (&)[3]>);
static_assert(hvd::Buffer<std::list<float>> && hvd::Buffer<std::deque<float>> && hvd::Buffer<std::vector<bool>>);
static_assert(!hvd::Buffer<float*> && !hvd::Buffer<int> && !hvd::Buffer<no_range> && !hvd::Buffer<std::nullptr_t>);

}  // namespace

TEST_CASE("a span has the memory of its buffer") {
  std::vector<float> vector(5);
  CHECK(hvd::as_span(vector).data() == vector.data());
  CHECK(hvd::as_span(vector).size() == 5);

  double array[3] = {1, 2, 3};
  CHECK(hvd::as_span(array).data() == array);
  CHECK(hvd::as_span(array).size() == 3);

  const std::array<int, 4> constant{1, 2, 3, 4};
  CHECK(hvd::as_span(constant).data() == constant.data());
  CHECK(hvd::as_span(constant).size() == 4);

  const auto middle = std::span(vector).subspan(1, 3);
  CHECK(hvd::as_span(middle).data() == vector.data() + 1);
  CHECK(hvd::as_span(std::span(vector).first(2)).size() == 2);

  image i{{1, 2, 3, 4}, 2};
  CHECK(hvd::as_span(i).data() == i.pixels.data());
  CHECK(hvd::as_span(std::as_const(i)).size() == 4);
}

TEST_CASE("output is memory that may be written") {
  std::vector<int> vector(2);
  hvd::as_output(vector)[1] = 7;
  CHECK(vector[1] == 7);
  const std::span<int> view(vector);
  hvd::as_output(view)[0] = 8;
  CHECK(vector[0] == 8);
  hvd::as_output(std::span(vector))[0] = 9;  // of a temporary view
  CHECK(vector[0] == 9);
  image i{{1, 2}, 1};
  hvd::as_output(i)[0] = 5;
  CHECK(i.pixels[0] == 5);
}

TEST_CASE("nothing is a buffer too") {
  std::vector<float> none;
  CHECK(hvd::as_span(none).empty());
  std::array<float, 0> zero{};
  CHECK(hvd::as_span(zero).empty());
  CHECK(hvd::as_span(std::span<float>()).data() == nullptr);
  hvd::shared_array<double> nothing;
  CHECK(nothing.empty());
  CHECK(nothing.data() == nullptr);
  CHECK(nothing.begin() == nothing.end());
  CHECK(hvd::as_span(nothing).empty());
}

TEST_CASE("a shared_array is moved, and gives its memory back once") {
  static_assert(!std::is_copy_constructible_v<hvd::shared_array<int>>);
  static_assert(std::is_nothrow_move_constructible_v<hvd::shared_array<int>>);
  static_assert(std::is_nothrow_move_assignable_v<hvd::shared_array<int>>);
  static_assert(std::ranges::contiguous_range<hvd::shared_array<int>> &&
                std::ranges::sized_range<const hvd::shared_array<int>>);

  int freed = 0;
  std::vector<int> memory(4);
  const auto make = [&] {
    return hvd::shared_array<int>(memory.data(), memory.size(),
                                  std::shared_ptr<void>(memory.data(), [&](void*) { ++freed; }));
  };
  {
    hvd::shared_array<int> a = make();
    CHECK(a.size() == 4);
    std::iota(a.begin(), a.end(), 1);
    CHECK(a[3] == 4);
    CHECK(std::as_const(a)[0] == 1);
    CHECK(std::as_const(a).end() - std::as_const(a).begin() == 4);

    hvd::shared_array<int> b = std::move(a);
    CHECK(b.data() == memory.data());
    CHECK(a.data() == nullptr);  // moved from, and nothing: that is promised
    CHECK(a.empty());
    CHECK(freed == 0);

    a = std::move(b);
    CHECK(a.size() == 4);
    CHECK(b.empty());
    auto& self = a;
    a = std::move(self);
    CHECK(a.data() == memory.data());
    CHECK(a.size() == 4);
    CHECK(freed == 0);

    a = make();
    CHECK(freed == 1);
  }
  CHECK(freed == 2);
}
