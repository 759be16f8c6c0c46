// tests/algorithm/adasum.cpp: against whole vectors, over a transport that has only send, recv and exchange.
#include <hvd/algorithm/adasum.hpp>
#include <hvd/allreduce.hpp>

#include <algorithm/point_to_point.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using hvd::adasum;
using hvd::bfloat16;
using hvd::half;
using hvd::test::QueueTransport;

static_assert(hvd::Answers<adasum, QueueTransport, hvd::allreduce_call>);
static_assert(!adasum::rank_ordered);

namespace {

using vector = std::vector<double>;

constexpr std::size_t tested_counts[] = {0, 1, 2, 7, 1000};

// ---- the definition, as in adasum_reference.py, whose results these are -----------------------------------

struct row {
  std::string_view kind;
  int ranks;
  std::size_t count;
  vector picked;
};
const row table[] = {
#include "adasum_reference.inc"
};

int noise(int stream, std::size_t i) {
  auto h = static_cast<std::uint32_t>(i) * 2654435761U + static_cast<std::uint32_t>(stream) * 40503U + 20260611U;
  h ^= h >> 15;
  h *= 2246822519U;
  h ^= h >> 13;
  return static_cast<int>(h % 63U) - 31;
}

double input(std::string_view kind, int rank, int ranks, std::size_t i) {
  const int own = noise(rank + 1, i);
  if (kind == "mixed") return (noise(0, i) + own) / 32.0;
  if (kind == "parallel") return noise(0, i) * std::ldexp(1.0, rank % 3 - 5);
  if (kind == "orthogonal")
    return i % static_cast<std::size_t>(ranks) == static_cast<std::size_t>(rank) ? own / 32.0 : 0;
  return rank % 2 == 1 ? own / 32.0 : 0.0;
}
vector input(std::string_view kind, int rank, int ranks, std::size_t first, std::size_t count) {
  vector v;
  for (std::size_t i = first; i != first + count; ++i) v.push_back(input(kind, rank, ranks, i));
  return v;
}

vector combine(const vector& a, const vector& b) {
  double dot = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i != a.size(); ++i) {
    dot += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  vector result;
  for (std::size_t i = 0; i != a.size(); ++i) {
    result.push_back((aa > 0 ? 1 - dot / (2 * aa) : 1) * a[i] + (bb > 0 ? 1 - dot / (2 * bb) : 1) * b[i]);
  }
  return result;
}

/// Of what `ranks` ranks have of one tensor, which starts at element `first`.
vector result_of(std::string_view kind, int ranks, std::size_t first, std::size_t count) {
  const int pairs = ranks - static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
  std::vector<vector> level;
  for (int r = 0; r != ranks; ++r) {
    const vector mine = input(kind, r, ranks, first, count);
    if (r < 2 * pairs && r % 2 == 1) {
      level.back() = combine(level.back(), mine);
    } else {
      level.push_back(mine);
    }
  }
  for (; level.size() > 1; level.resize(level.size() / 2)) {
    for (std::size_t i = 0; i != level.size() / 2; ++i) level[i] = combine(level[2 * i], level[2 * i + 1]);
  }
  return level[0];
}

// ---- what the algorithm makes of it -----------------------------------------------------------------------

template <class T>
T element(double x) {
  if constexpr (hvd::detail::is_half<T>) {
    return T(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}
template <class T>
double value(T x) {
  if constexpr (hvd::detail::is_half<T>) {
    return static_cast<double>(static_cast<float>(x));
  } else {
    return static_cast<double>(x);
  }
}

/// Roundings that add up, in units of the last place of the largest element: one in each of at most four levels, times
/// the factors of the levels after it, which for inputs four times as long as others are up to 3.5.
template <class T>
double tolerance(double largest) {
  return 16 * std::ldexp(largest, -std::numeric_limits<T>::digits);
}

/// A buffer with an element in front and one behind that must not change.
template <class T>
class framed_vector {
 public:
  explicit framed_vector(const vector& v) {
    all_.push_back(element<T>(canary));
    for (const double x : v) all_.push_back(element<T>(x));
    all_.push_back(element<T>(canary));
  }
  [[nodiscard]] std::byte* bytes() { return all_.size() == 2 ? nullptr : reinterpret_cast<std::byte*>(&all_[1]); }
  [[nodiscard]] std::vector<T> get() const {
    if (value(all_.front()) != canary || value(all_.back()) != canary) FAIL_CHECK("adasum wrote beside its buffer");
    return {all_.begin() + 1, all_.end() - 1};
  }

 private:
  static constexpr double canary = 77;
  std::vector<T> all_;
};
template <class T>
void same(const std::vector<T>& got, const vector& want, std::string_view what) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i != want.size(); ++i) wrong += value(got[i]) == want[i] ? 0 : 1;
  if (wrong != 0) FAIL_CHECK(name(hvd::dtype_of<T>) << " " << what << ": " << wrong << " elements are wrong");
}

template <class T, class Op = hvd::sum_t>
std::vector<T> run(QueueTransport& t, std::string_view kind, std::size_t count, bool in_place, const adasum& how = {},
                   const Op& op = {}) {
  const hvd::reduction r = hvd::make_reduction<T>(op, t.size());
  const vector mine = input(kind, t.rank(), t.size(), 0, count);
  framed_vector<T> in(mine), out(vector(count, 0.0));
  how(t, hvd::allreduce_call{in.bytes(), in_place ? in.bytes() : out.bytes(), count, r});
  if (in_place) return in.get();
  same(in.get(), mine, "input");
  return out.get();
}

template <class T>
void expect(QueueTransport& t, const std::vector<T>& got, const vector& want, std::string_view what) {
  double largest = 0;
  for (int r = 0; r != t.size(); ++r) {
    for (std::size_t i = 0; i != want.size(); ++i) largest = std::max(largest, std::abs(input(what, r, t.size(), i)));
  }
  for (const double x : want) largest = std::max(largest, std::abs(x));
  std::size_t wrong = 0;
  double worst = 0;
  for (std::size_t i = 0; i != want.size(); ++i) {
    const double off = std::abs(value(got[i]) - want[i]);
    worst = std::max(worst, off);
    wrong += off <= tolerance<T>(largest) ? 0 : 1;
  }
  if (wrong != 0) {
    FAIL_CHECK(name(hvd::dtype_of<T>) << " " << what << ": rank " << t.rank() << " of " << t.size() << ", "
                                      << want.size() << " elements: " << wrong << " are wrong, by up to " << worst);
  }
}

template <class F>
void for_types(const F& f) {
  f(half{});
  f(bfloat16{});
  f(float{});
  f(double{});
}
constexpr std::string_view kinds[] = {"mixed", "parallel", "orthogonal", "holes"};

/// What a call throws on every rank, before it has sent anything.
template <class F>
void refused(int size, hvd::error_kind kind, const std::string& words, const F& f) {
  const auto sent = hvd::test::traffic_of(size, [&](QueueTransport& t) {
    try {
      f(t);
      FAIL_CHECK("was not refused");
    } catch (const hvd::error& e) {
      const std::string what = e.what();
      CAPTURE(what);
      CHECK(e.kind() == kind);
      CHECK(what.find("rank " + std::to_string(t.rank()) + " of " + std::to_string(size)) != std::string::npos);
      CHECK(what.find(words) != std::string::npos);
    }
  });
  for (const auto& s : sent) CHECK(s.messages == 0);
}

}  // namespace

TEST_CASE("adasum says its tunables and compares them") {
  const std::size_t some[] = {3, 4}, same[] = {3, 4}, others[] = {4, 3};
  CHECK(name(adasum{}) == "adasum(tensors=0)");
  CHECK(name(adasum{.tensors = some}) == "adasum(tensors=2)");
  CHECK(adasum{.tensors = some} == adasum{.tensors = same});
  CHECK(adasum{.tensors = some} != adasum{.tensors = others});
  CHECK(adasum{.tensors = some} != adasum{});
}

TEST_CASE("the definition here is the one of NumPy") {
  std::size_t rows = 0;
  for (const row& r : table) {
    CAPTURE(r.kind);
    CAPTURE(r.ranks);
    CAPTURE(r.count);
    const vector all = result_of(r.kind, r.ranks, 0, r.count);
    vector picked = all;
    if (r.count >= 53) {
      picked.clear();
      for (std::size_t i = 0; i < r.count; i += 53) picked.push_back(all[i]);
      picked.push_back(all.back());
    }
    REQUIRE(picked.size() == r.picked.size());
    double worst = 0;
    for (std::size_t i = 0; i != picked.size(); ++i) worst = std::max(worst, std::abs(picked[i] - r.picked[i]));
    CHECK(worst < 1e-12);
    ++rows;
  }
  CHECK(rows == std::size(kinds) * 9 * std::size(tested_counts));
}

TEST_CASE("adasum of one tensor: all types, ranks and counts, in place and out of place, the same bits everywhere") {
  for (int size = 1; size <= 9; ++size) {
    for (const std::string_view kind : kinds) {
      for (const std::size_t count : tested_counts) {
        const vector want = result_of(kind, size, 0, count);
        for_types([&]<class T>(T) {
          std::vector<std::vector<T>> results(2 * static_cast<std::size_t>(size));
          CHECK_NOTHROW(hvd::test::on_ranks(size, [&](QueueTransport& t) {
            for (const bool in_place : {false, true}) {
              auto& got = results[2 * static_cast<std::size_t>(t.rank()) + (in_place ? 1 : 0)];
              got = run<T>(t, kind, count, in_place);
              expect(t, got, want, kind);
            }
          }));
          for (const auto& other : results) {
            CHECK((count == 0 || std::memcmp(other.data(), results[0].data(), count * sizeof(T)) == 0));
          }
        });
      }
    }
  }
}

TEST_CASE("adasum of orthogonal vectors is their sum, of equal ones each of them, of zeros zero: exactly") {
  for (int size = 1; size <= 9; ++size) {
    hvd::test::on_ranks(size, [&](QueueTransport& t) {
      for_types([&]<class T>(T) {
        const hvd::reduction op = hvd::make_reduction<T>(hvd::sum, size);
        const auto judge_all = [&](const auto& mine, const auto& want, const char* what) {
          vector x, y;
          for (std::size_t i = 0; i != 1000; ++i) {
            x.push_back(mine(i));
            y.push_back(want(i));
          }
          framed_vector<T> inout(x);
          adasum{}(t, hvd::allreduce_call{inout.bytes(), inout.bytes(), x.size(), op});
          same(inout.get(), y, what);
        };
        const auto owner = [&](std::size_t i) { return static_cast<int>(i % static_cast<std::size_t>(size)); };
        judge_all([&](std::size_t i) { return input("orthogonal", t.rank(), size, i); },
                  [&](std::size_t i) { return input("orthogonal", owner(i), size, i); }, "orthogonal");
        judge_all([&](std::size_t i) { return noise(3, i) / 32.0; }, [&](std::size_t i) { return noise(3, i) / 32.0; },
                  "equal");
        judge_all([&](std::size_t) { return 0.0; }, [&](std::size_t) { return 0.0; }, "zeros");
        // One rank alone has something: it is taken as it is.
        judge_all([&](std::size_t i) { return t.rank() == size / 2 ? noise(4, i) / 32.0 : 0.0; },
                  [&](std::size_t i) { return noise(4, i) / 32.0; }, "zeros but for one rank");
      });
    });
  }
}

TEST_CASE("adasum of parallel vectors is their average") {
  for (const int size : {2, 4, 8}) {  // with equal weights
    hvd::test::on_ranks(size, [&](QueueTransport& t) {
      vector want;
      double factor = 0;
      for (int r = 0; r != size; ++r) factor += std::ldexp(1.0, r % 3);
      for (std::size_t i = 0; i != 1000; ++i) want.push_back(noise(0, i) / 32.0 * factor / size);
      expect(t, run<double>(t, "parallel", 1000, false), want, "parallel");
      expect(t, run<float>(t, "parallel", 1000, true), want, "parallel");
    });
  }
}

TEST_CASE("adasum of several tensors: each has factors of its own") {
  // Not many of one element: two that cancel would leave zero or a rounding error, between which adasum is not
  // continuous.
  const std::vector<std::vector<std::size_t>> cuts{
      {1000}, {0, 400, 0, 600, 0}, {1, 998, 1}, {333, 333, 334}, std::vector<std::size_t>(250, 4)};
  for (int size = 1; size <= 9; ++size) {
    for (const auto& tensors : cuts) {
      vector want;
      for (const std::size_t n : tensors) {
        const vector part = result_of("mixed", size, want.size(), n);
        want.insert(want.end(), part.begin(), part.end());
      }
      hvd::test::on_ranks(size, [&](QueueTransport& t) {
        for_types([&]<class T>(T) {
          expect(t, run<T>(t, "mixed", 1000, t.rank() % 2 == 0, adasum{.tensors = tensors}), want, "mixed");
        });
      });
    }
  }
}

TEST_CASE("adasum with prescale and postscale") {
  for (const int size : {1, 2, 5, 8}) {
    vector want = result_of("mixed", size, 0, 1000);
    for (double& x : want) x *= 0.5 * 4.0;
    hvd::test::on_ranks(size, [&](QueueTransport& t) {
      for (const bool in_place : {false, true}) {
        const auto op = hvd::scaled(hvd::sum, 0.5, 4.0);
        expect(t, run<float>(t, "mixed", 1000, in_place, {}, op), want, "mixed");
        expect(t, run<double>(t, "mixed", 1000, in_place, {}, op), want, "mixed");
      }
    });
  }
}

TEST_CASE("adasum: an infinity makes its tensor NaN, and no other") {
  hvd::test::on_ranks(3, [](QueueTransport& t) {
    const std::size_t tensors[] = {5, 5};
    std::vector<float> x(10, static_cast<float>(t.rank() + 1));
    if (t.rank() == 1) x[2] = std::numeric_limits<float>::infinity();
    hvd::allreduce(t, x, hvd::sum, adasum{.tensors = tensors});
    for (std::size_t i = 0; i != x.size(); ++i) CHECK(std::isnan(x[i]) == (i < 5));
  });
}

TEST_CASE("adasum through the front door, in place and out of place") {
  hvd::test::on_ranks(4, [](QueueTransport& t) {
    const std::vector<float> in{1, static_cast<float>(t.rank()), 0, 2};
    std::vector<float> out(4), again{in};
    hvd::allreduce(t, in, out, hvd::sum, adasum{});
    hvd::allreduce(t, again, hvd::scaled(hvd::sum, 1.0), adasum{});
    CHECK(out == again);
  });
}

TEST_CASE("adasum refuses what it cannot do, on all ranks, before anything is sent") {
  struct smaller {
    float operator()(float a, float b) const { return a < b ? a : b; }
  };
  constexpr auto unsupported = hvd::error::unsupported;
  const auto with = [](auto op) {
    return [op](QueueTransport& t) {
      std::vector<float> x(5);
      hvd::allreduce(t, x, op, adasum{});
    };
  };
  refused(3, unsupported, "not average; pass hvd::sum", with(hvd::average));
  refused(3, unsupported, "not max; pass hvd::sum", with(hvd::max));
  refused(3, unsupported, "not user-defined; pass hvd::sum", with(smaller{}));
  refused(3, unsupported, "not product; pass hvd::sum", with(hvd::scaled(hvd::product, 2.0)));
  const auto of = []<class T>(T) {
    return [](QueueTransport& t) {
      std::vector<T> x(5);
      hvd::allreduce(t, x, hvd::sum, adasum{});
    };
  };
  refused(3, unsupported, "not for int32; convert the elements", of(std::int32_t{}));
  refused(3, unsupported, "not for complex64; convert the elements", of(std::complex<float>{}));
  const auto cut = [](std::vector<std::size_t> tensors) {
    return [tensors](QueueTransport& t) {
      std::vector<float> x(5);
      hvd::allreduce(t, x, hvd::sum, adasum{.tensors = tensors});
    };
  };
  const std::string words = "do not add up to 5, the elements of the buffer";
  refused(3, hvd::error::invalid_argument, words, cut({2, 2}));
  refused(3, hvd::error::invalid_argument, words, cut({2, 4}));
  refused(3, hvd::error::invalid_argument, words, cut({6, ~std::size_t{0}}));
}

TEST_CASE("adasum sends what it says") {
  constexpr std::size_t count = 1024;
  constexpr std::size_t bytes_each = count * sizeof(float);
  const std::size_t three[] = {100, 900, 24};
  for (const adasum& how : {adasum{}, adasum{.tensors = three}}) {
    const std::size_t products = 24 * std::max<std::size_t>(1, how.tensors.size());
    for (const int p : {8, 11}) {
      CAPTURE(p);
      const auto sent = hvd::test::traffic_of(p, [&](QueueTransport& t) {
        const hvd::reduction op = hvd::make_reduction<float>(hvd::sum, p);
        std::vector<float> x(count);
        auto* const bytes = reinterpret_cast<std::byte*>(x.data());
        how(t, hvd::allreduce_call{bytes, bytes, count, op});
      });
      for (int r = 0; r != p; ++r) {
        const auto& s = sent[static_cast<std::size_t>(r)];
        const bool paired = r < 2 * (p - 8);
        const bool acts = !paired || r % 2 == 0;
        const std::size_t own = acts ? 2 * bytes_each * 7 / 8 + products * 6 : 0;
        const std::size_t for_pair = paired ? products + (acts ? bytes_each / 2 * 3 : bytes_each) : 0;
        CHECK(s.bytes == own + for_pair);
        CHECK(s.messages == (acts ? 12U : 0U) + (paired ? 3U : 0U));
      }
    }
  }
}
