// tests/allreduce.cpp: the ways to call allreduce, and what it refuses.
#include <hvd/allreduce.hpp>

#include <support/front_door.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

using namespace hvd::test;

namespace {

// A caller may ask whether a call compiles.
template <class T, class B>
concept reduces = requires(T& comm, B&& b) { hvd::allreduce(comm, static_cast<B&&>(b)); };
struct no_buffer {};
static_assert(reduces<hvd::SelfTransport, std::vector<float>&> && reduces<hvd::SelfTransport, std::span<float>>);
static_assert(!reduces<hvd::SelfTransport, std::vector<float>> && !reduces<hvd::SelfTransport, no_buffer&>);

struct last {
  static constexpr bool commutative = false;
  float operator()(float /*a*/, float b) const { return b; }
};

/// Alone, with buffers that only its own collective may read or write.
struct lone_device {
  static constexpr hvd::memory_kind memory = hvd::memory_kind::device;
  int calls = 0;
  int rank() const { return 0; }
  int size() const { return 1; }
  void barrier() {}
  lone_device split(int /*color*/, int /*key*/) { return {}; }
  bool native(const hvd::allreduce_call& /*call*/) { return ++calls != 0; }
};

}  // namespace

TEST_CASE("memory of a device is not copied on the host, not even by a rank that is alone") {
  lone_device comm;
  const std::vector<float> in(4, 1.0f);
  std::vector<float> out(4, 7.0f);
  hvd::allreduce(comm, in, out, hvd::sum, hvd::native{});
  CHECK(comm.calls == 1);
  CHECK(out == std::vector<float>(4, 7.0f));
}

TEST_CASE("in place, sum, algorithm chosen") {
  everywhere([](auto& comm) {
    std::vector<float> v = ramp(comm.rank(), 10);
    hvd::allreduce(comm, v);
    CHECK(v == ramp_sum(comm.size(), 10));
  });
}

TEST_CASE("out of place: the input stays") {
  everywhere([](auto& comm) {
    const std::vector<double> in = ramp<double>(comm.rank(), 1000);
    std::vector<double> out(1000);
    hvd::allreduce(comm, in, out);
    CHECK(out == ramp_sum<double>(comm.size(), 1000));
    CHECK(in == ramp<double>(comm.rank(), 1000));
  });
}

TEST_CASE("the operation, and how") {
  everywhere([](auto& comm) {
    const auto r = static_cast<float>(comm.rank());
    const auto p = static_cast<float>(comm.size());
    std::array<float, 2> v{r, -r};
    hvd::allreduce(comm, v, hvd::max);
    CHECK(v == std::array<float, 2>{p - 1, 0});

    std::array<float, 1> a{r}, b{};
    hvd::allreduce(comm, a, b, hvd::average);
    CHECK(b[0] == (p - 1) / 2);
    hvd::allreduce(comm, a, b, hvd::scaled(hvd::sum, 2.0, 0.5), hvd::automatic<>{});
    CHECK(b[0] == p * (p - 1) / 2);
    hvd::allreduce(comm, a, b, hvd::sum, hvd::ring{.chunk_bytes = 1 << 20});
    CHECK(b[0] == p * (p - 1) / 2);
    hvd::allreduce(comm, a, hvd::min, hvd::tree{});
    CHECK(a[0] == 0);
    if constexpr (hvd::PeerMemory<std::remove_reference_t<decltype(comm)>>) {
      hvd::allreduce(comm, std::span(b), hvd::sum, hvd::direct{.one_shot_bytes = 1024});
      CHECK(b[0] == p * p * (p - 1) / 2);
    }
  });
}

TEST_CASE("pointers with a count") {
  everywhere([](auto& comm) {
    const std::vector<std::int32_t> in = ramp<std::int32_t>(comm.rank(), 7);
    std::vector<std::int32_t> out(8, -1);
    hvd::allreduce(comm, in.data(), out.data(), 7);
    CHECK(out[6] == 7 * comm.size() * (comm.size() + 1) / 2);
    CHECK(out[7] == -1);
    std::vector<std::int32_t> v = in;
    hvd::allreduce(comm, v.data(), std::size_t{7}, hvd::min);
    CHECK(v == ramp<std::int32_t>(0, 7));
    hvd::allreduce(comm, v.data(), v.data(), 7, hvd::max, hvd::automatic<>{});
    CHECK(v == ramp<std::int32_t>(0, 7));
    hvd::allreduce(comm, static_cast<const float*>(nullptr), static_cast<float*>(nullptr), 0);
  });
}

TEST_CASE("any buffer: a C array, a view of a part, shared memory") {
  everywhere([](auto& comm) {
    float three[3] = {1, 2, 3};
    hvd::allreduce(comm, three);
    CHECK(three[2] == 3.0f * static_cast<float>(comm.size()));

    std::vector<float> v(10, 1.0f);
    hvd::allreduce(comm, std::span(v).subspan(2, 3));
    CHECK(v[1] == 1.0f);
    CHECK(v[2] == static_cast<float>(comm.size()));
    CHECK(v[4] == static_cast<float>(comm.size()));
    CHECK(v[5] == 1.0f);

    auto shared = comm.template alloc_shared<float>(10000);
    shared[9999] = 2.0f;
    hvd::allreduce(comm, shared);
    CHECK(shared[9999] == 2.0f * static_cast<float>(comm.size()));
    std::vector<float> out(10000);
    hvd::allreduce(comm, shared, out, hvd::max);
    CHECK(out[9999] == shared[9999]);
  });
}

TEST_CASE("nothing to reduce") {
  everywhere([](auto& comm) {
    std::vector<float> none, also_none;
    hvd::allreduce(comm, none);
    hvd::allreduce(comm, none, also_none, hvd::average);
    hvd::allreduce(comm, std::span<const double>(), std::span<double>());
    comm.barrier();
  });
}

TEST_CASE("an operation that does not commute takes ranks in order, or is refused") {
  everywhere([](auto& comm) {
    const auto r = static_cast<float>(comm.rank());
    std::vector<float> v(100, r);
    hvd::allreduce(comm, v, last{});
    CHECK(v[99] == static_cast<float>(comm.size() - 1));
    v.assign(100, r);
    const auto by_ring = complaint([&] { hvd::allreduce(comm, v, last{}, hvd::ring{}); });
    if (comm.size() == 1) {
      CHECK(by_ring == "accepted");
    } else {
      CHECK(by_ring == doctest::Contains("unsupported: hvd: allreduce on rank "));
      CHECK(by_ring == doctest::Contains("does not combine ranks in order"));
    }
    hvd::allreduce(comm, v, hvd::non_commutative(last{}), hvd::recursive_doubling{});
    CHECK(v[0] == static_cast<float>(comm.size() - 1));
  });
}

TEST_CASE("what allreduce refuses, with the group still usable") {
  everywhere([](auto& comm) {
    const auto say = [&](const char* why) { return refused(hvd::operation::allreduce, comm, why); };
    std::vector<float> four(4, 1.0f), three(3);
    CHECK(complaint([&] { hvd::allreduce(comm, four, three); }) ==
          say("output has 3 elements; allowed: 4 (as the input)").c_str());
    CHECK(complaint([&] { hvd::allreduce(comm, static_cast<float*>(nullptr), 5); }) ==
          say("input is null but has 5 elements").c_str());
    CHECK(complaint([&] { hvd::allreduce(comm, four.data(), static_cast<float*>(nullptr), 4); }) ==
          say("output is null but has 4 elements").c_str());
    CHECK(complaint([&] { hvd::allreduce(comm, std::span(four).first(3), std::span(four).last(at_run_time(3))); }) ==
          say("input and output overlap; allowed: no common element, or in place as the collective documents").c_str());
    hvd::allreduce(comm, four);
    CHECK(four[0] == static_cast<float>(comm.size()));
  });
}

TEST_CASE("with HVD_CHECK the others learn what one rank did wrong") {
  everywhere(
      [](auto& comm) {
        std::vector<float> v(4, 1.0f), out(4);
        const bool wrong = comm.rank() == comm.size() - 1;
        const auto said = complaint([&] { hvd::allreduce(comm, v, std::span(out).first(wrong ? 3 : 4)); });
        if (wrong) {
          CHECK(said == doctest::Contains("invalid_argument: hvd: allreduce on rank "));
          CHECK(said == doctest::Contains("output has 3 elements"));
        } else {
          CHECK(said == doctest::Contains("invalid_argument: hvd: allreduce on rank "));
          CHECK(said == doctest::Contains(("rank " + std::to_string(comm.size() - 1) + " called allreduce").c_str()));
        }
        hvd::allreduce(comm, v);
        CHECK(v[3] == static_cast<float>(comm.size()));
      },
      true);
}
