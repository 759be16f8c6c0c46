#include <hvd/tensors.hpp>

#include <doctest/doctest.h>

#include <array>
#include <string>

namespace {

using hvd::dtype;
using hvd::fused;

TEST_CASE("a list has a view of each buffer, in order, with its type") {
  std::vector<float> a(3);
  const std::array<std::int64_t, 2> b{};
  std::int64_t c[2];
  bool flags[4] = {};
  hvd::tensor_list list = hvd::tensors(a, std::span(flags).first(1));
  list.add(b, c).add(fused{nullptr, nullptr, 0, dtype::bfloat16});
  const std::span<const fused> all = list;
  REQUIRE(list.size() == 4);
  CHECK(all[0].in == reinterpret_cast<std::byte*>(a.data()));
  CHECK(all[0].out == all[0].in);
  CHECK(all[0].count == 3);
  CHECK(all[0].type == dtype::float32);
  CHECK(all[0].wire == dtype::float32);
  CHECK(all[1].type == dtype::boolean);
  CHECK(all[1].count == 1);
  CHECK(all[2].in == reinterpret_cast<const std::byte*>(b.data()));
  CHECK(all[2].out == reinterpret_cast<std::byte*>(c));
  CHECK(all[2].type == dtype::int64);
  CHECK(all[3].type == dtype::bfloat16);
  list.clear();
  CHECK(list.size() == 0);
}

TEST_CASE("a range of buffers becomes a list of them; a buffer of arrays does not") {
  std::vector<std::vector<double>> parts(3, std::vector<double>(4));
  std::array<std::span<int>, 2> views{};
  CHECK(hvd::tensors(parts).size() == 3);
  CHECK(hvd::tensors(views).size() == 2);
  CHECK(hvd::tensors(parts[0]).size() == 1);
  static_assert(!hvd::detail::range_of_buffers<std::vector<std::array<float, 3>>&>);
}

TEST_CASE("an output of another length is refused") {
  std::vector<float> in(3), out(4);
  hvd::tensor_list list = hvd::tensors(in);
  std::string why;
  try {
    list.add(in, out);
  } catch (const hvd::error& e) {
    CHECK(e.kind() == hvd::error_kind::invalid_argument);
    why = e.what();
  }
  CHECK(why == "hvd: tensor_list: the output of tensor 1 has 4 elements; allowed: 3 (as the input)");
  CHECK(list.size() == 1);
}

}  // namespace
