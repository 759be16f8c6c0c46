// tests/campaign/fuzz/request.cpp: what a program submits to the engine, however wrong.
//
// Findings besides those of fuzz.hpp: a request that is accepted although its sizes have no meaning.
#include <hvd/engine/plan.hpp>
#include <hvd/engine/validate.hpp>

#include "fuzz.hpp"

FUZZ(in) {
  const int size = 1 + static_cast<int>(in.below(8)), rank = static_cast<int>(in.below(static_cast<unsigned>(size)));
  const auto number = [&]() -> std::size_t {
    switch (in.below(4)) {
      case 0: return in.take<std::uint64_t>();
      case 1: return std::size_t{1} << in.below(64);
      default: return in.below(10);
    }
  };
  static std::byte memory[64];
  hvd::request r;
  r.kind = static_cast<hvd::operation>(in.below(16));
  r.op = static_cast<hvd::reduce_op>(in.below(8));
  r.root = in.below(4) == 0 ? in.take<int>() : static_cast<int>(in.below(8));
  r.prescale = in.below(4) == 0 ? in.take<double>() : 1.0;
  r.postscale = in.below(4) == 0 ? in.take<double>() : 1.0;
  r.priority = in.take<int>();
  std::vector<int> members;
  for (unsigned n = in.below(6); n != 0; --n) {
    members.push_back(in.below(4) == 0 ? in.take<int>() : static_cast<int>(in.below(8)));
  }
  for (unsigned n = in.below(5); n != 0; --n) {
    hvd::tensor t;
    t.type = static_cast<hvd::dtype>(in.below(20));
    t.in = in.below(4) == 0 ? nullptr : memory + in.below(64);
    t.out = in.below(2) == 0 ? nullptr : memory + in.below(64);
    for (unsigned d = in.below(5); d != 0; --d) t.shape.push_back(number());
    for (unsigned d = in.below(9); d != 0; --d) t.splits.push_back(number());
    r.tensors.push_back(std::move(t));
  }
  r.name = in.all();
  fuzz::accepts([&] { hvd::detail::check_members(members, rank, size); });
  if (!fuzz::accepts([&] { hvd::detail::validate(r, rank, size); })) return;
  const hvd::detail::signature s = hvd::detail::signature_of(r);
  std::size_t bytes = 0;
  for (const hvd::tensor& t : r.tensors) {
    std::size_t elements = hvd::size_of(t.type);
    fuzz::require(elements != 0, "elements without bytes");
    std::size_t rows = 0;
    for (const std::size_t n : t.splits) rows += n;
    fuzz::require(t.shape.empty() || rows <= t.shape.front(), "splits beyond the rows");
    for (const std::size_t n : t.shape) {
      fuzz::require(!__builtin_mul_overflow(elements, n, &elements), "more bytes than there can be");
    }
    bytes += elements;  // of which no machine has so many that this wraps
  }
  if (!s.rows_differ()) fuzz::require(hvd::detail::bytes_of(s) == bytes, "other bytes");
  // As other ranks get it.
  std::string text;
  hvd::detail::put(text, hvd::detail::announcement{r.name, s, r.priority, rank, 1});
  std::string_view rest = text;
  fuzz::require(hvd::detail::take_announcement(rest).what == s && rest.empty(), "another signature");
}
