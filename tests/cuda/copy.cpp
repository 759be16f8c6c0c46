// tests/cuda/copy.cpp: the bodies of the GPU's kernels, run on the CPU for a whole grid, give the bits of the host's
// own scaling and conversion, at every alignment, and touch nothing else; and the launches are planned as they should
// be.
#include <hvd/cuda/copy.hpp>

#include <hvd/fusion/convert.hpp>
#include <hvd/op.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using hvd::bfloat16;
using hvd::dtype;
using hvd::half;
using namespace hvd::detail;

constexpr auto guard = std::byte{0xa5};
constexpr std::size_t border = 48;  // bytes of guards before and behind each output

void run(std::size_t kernel, const copy_parameters& p, std::uint32_t tiles, unsigned threads = copy_threads) {
  const host_copy_kernel thread_of = find_host_copy_kernel(kernel);
  for (unsigned block = 0; block != tiles; ++block) {
    for (unsigned thread = 0; thread != threads; ++thread) thread_of(p, block, thread, threads);
  }
}

/// Memory that starts at a multiple of 16, plus an offset.
class aligned_bytes {
 public:
  aligned_bytes(std::size_t bytes, std::size_t offset) : all_(bytes + offset + 16) {
    start_ = all_.data() + (16 - reinterpret_cast<std::uintptr_t>(all_.data()) % 16) % 16 + offset;
  }
  [[nodiscard]] std::byte* data() { return start_; }

 private:
  std::vector<std::byte> all_;
  std::byte* start_;
};

/// Elements of random bits, so that NaNs, infinities and subnormals are among them, after all that are of interest.
template <class T>
std::vector<T> samples(std::size_t count) {
  std::vector<std::uint64_t> bits;
  if constexpr (sizeof(T) <= 2) {
    for (std::uint64_t i = 0; i != (sizeof(T) == 1 ? 0x100U : 0x10000U); ++i) bits.push_back(i);
  } else {
    constexpr int mantissa = std::is_same_v<T, float> ? 23 : std::is_same_v<T, double> ? 52 : 8 * sizeof(T) - 9;
    for (std::uint64_t top = 0; top != std::uint64_t{1} << (8 * sizeof(T) - mantissa); ++top) {
      const std::uint64_t half_way = std::uint64_t{1} << (mantissa - 1), all = 2 * half_way - 1;
      for (const std::uint64_t low : {std::uint64_t{0}, std::uint64_t{1}, half_way, half_way - 1, half_way + 1, all,
                                      all >> 7, all >> 8, all >> 10, all >> 11, 0x10000000U & all, 0x30000000U & all}) {
        bits.push_back(top << mantissa | low);
      }
    }
  }
  std::uint64_t state = 12345;
  while (bits.size() < count) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    bits.push_back(state >> (64 - 8 * sizeof(T)));
  }
  std::vector<T> result(bits.size());
  for (std::size_t i = 0; i != bits.size(); ++i) {
    std::memcpy(&result[i], &bits[i], sizeof(T));
  }
  if constexpr (std::is_same_v<T, half>) {  // on some CPUs a signalling NaN stays one in hvd/fusion/convert.hpp
    for (half& x : result) {
      if ((x.bits & 0x7c00U) == 0x7c00U && (x.bits & 0x3ffU) != 0) x.bits |= 0x200U;
    }
  }
  return result;
}

template <class T>
using format_of = std::conditional_t<std::is_same_v<T, half>, half_format,
                                     std::conditional_t<std::is_same_v<T, bfloat16>, bfloat16_format, plain<T>>>;

/// What the host makes of the elements in a fusion's packing (the divisor is 1) or unpacking.
template <class From, class To>
std::vector<To> on_host(const std::vector<From>& in, double factor, std::uint32_t divisor, bool packing) {
  std::vector<To> out(in.size());
  auto* const to = reinterpret_cast<std::byte*>(out.data());
  const auto* const from = reinterpret_cast<const std::byte*>(in.data());
  const scaling scale = packing ? scaling{factor, 1.0, 1} : scaling{1.0, factor, divisor};
  if constexpr (std::is_same_v<From, To>) {
    hvd::reduction r = hvd::make_reduction<From>(hvd::sum, 1);
    r.scale = scale;
    r.prepare(to, from, in.size());
    r.finish(to, in.size());
  } else if constexpr (std::is_same_v<From, double>) {
    conversion<plain<double>, widened_float>()(to, from, in.size(), &scale);
  } else if constexpr (std::is_same_v<To, double>) {
    conversion<widened_float, plain<double>>()(to, from, in.size(), &scale);
  } else {
    conversion<format_of<From>, format_of<To>>()(to, from, in.size(), &scale);
  }
  return out;
}

/// On the emulated GPU: elements [0, n) of `in` for each n of `counts`, as parts of one batch, which start `a` and `b`
/// bytes behind a multiple of 16. Whether all are as expected.
template <class From, class To>
void check(const copy_choice& choice, const std::vector<From>& in, const std::vector<To>& expected,
           const std::vector<std::size_t>& counts, std::size_t a, std::size_t b, double factor, std::uint32_t divisor) {
  std::vector<aligned_bytes> ins, outs;
  std::vector<device_part> parts;
  for (const std::size_t n : counts) {
    ins.emplace_back(n * sizeof(From), a);
    if (n != 0) std::memcpy(ins.back().data(), in.data(), n * sizeof(From));
    outs.emplace_back(n * sizeof(To) + 2 * border, b);
    std::fill_n(outs.back().data(), n * sizeof(To) + 2 * border, guard);
    parts.push_back({ins.back().data(), outs.back().data() + border, n});
  }
  const auto p = std::make_unique<copy_parameters>();
  p->factor = factor;
  p->divisor = divisor;
  plan_copies(parts, choice, *p, [&](std::uint32_t tiles) { run(choice.kernel, *p, tiles); });
  for (std::size_t i = 0; i != counts.size(); ++i) {
    const std::size_t n = counts[i], bytes = n * sizeof(To);
    const std::byte* const out = outs[i].data() + border;
    const bool right = n == 0 || std::memcmp(out, expected.data(), bytes) == 0;
    const bool untouched = std::all_of(out - border, out, [](std::byte x) { return x == guard; }) &&
                           std::all_of(out + bytes, out + bytes + border, [](std::byte x) { return x == guard; });
    if (right && untouched) continue;
    std::size_t at = 0;
    while (at + 1 < n && std::memcmp(out + at * sizeof(To), &expected[at], sizeof(To)) == 0) ++at;
    CAPTURE(copy_kernels[choice.kernel]);
    CAPTURE(hvd::name(hvd::dtype_of<From>));
    CAPTURE(hvd::name(hvd::dtype_of<To>));
    CAPTURE(a);
    CAPTURE(b);
    CAPTURE(n);
    CAPTURE(at);
    CAPTURE(factor);
    CAPTURE(divisor);
    CHECK(right);
    CHECK(untouched);
    return;
  }
  CHECK(true);
}

struct factor_and_divisor {
  double factor;
  std::uint32_t divisor;
};

template <class From, class To>
void check_kernel(std::string_view kernel_name) {
  constexpr bool bytes = std::is_same_v<From, std::byte>;
  constexpr std::size_t tile = 16384 / std::max(sizeof(From), sizeof(To)),
                        wide = 16 / std::max(sizeof(From), sizeof(To));
  const copy_choice choice = choose_copy(hvd::dtype_of<From>, hvd::dtype_of<To>, !bytes);
  CHECK(copy_kernels[choice.kernel] == kernel_name);
  CHECK(choice.each == 1);
  CHECK((std::size_t{1} << choice.from.shift) == sizeof(From));
  CHECK((std::size_t{1} << choice.to.shift) == sizeof(To));
  CHECK(copy_tile_elements(choice.from, choice.to) == tile);

  const std::vector<From> in = samples<From>(3 * tile + 5);
  std::vector<factor_and_divisor> scales{{1.0, 1}};
  if constexpr (!bytes) {
    for (const double factor : {1.0, 0.5, 2.0, -1.0, 1.0 / 3.0, -1.7, 1e10, 1e-5, 1e300, 1e-300, 0x1p-14}) {
      for (const std::uint32_t divisor : {1U, 2U, 3U, 7U, 1000U, 0xffff'ffffU}) scales.push_back({factor, divisor});
    }
    if (std::is_integral_v<From>) scales.push_back({std::numeric_limits<double>::quiet_NaN(), 1});
  }
  std::vector<std::size_t> few, many;
  for (std::size_t n = 0; n <= 2 * wide + 2; ++n) few.push_back(n);
  for (const std::size_t n : {copy_threads * wide - 1, copy_threads * wide + 1}) few.push_back(n);
  for (const std::size_t n : {tile - 1, tile, tile + 1, tile + wide - 1, 2 * tile - 1, 2 * tile + 1, 3 * tile + 5}) {
    many.push_back(n);
  }
  for (std::size_t s = 0; s != scales.size(); ++s) {
    const auto [factor, divisor] = scales[s];
    std::vector<To> expected;
    if constexpr (bytes) {
      expected = in;
    } else {
      expected = on_host<From, To>(in, factor, divisor, false);
      if (divisor == 1) {
        const std::vector<To> packed = on_host<From, To>(in, factor, divisor, true);
        CHECK(std::memcmp(packed.data(), expected.data(), expected.size() * sizeof(To)) == 0);
      }
    }
    // Every value once for each scale, and every alignment for some: the two have nothing to do with each other.
    check(choice, in, expected, {in.size()}, 0, 0, factor, divisor);
    if (s > 1 && s != 9) continue;
    for (std::size_t a = 0; a < 16; a += sizeof(From)) {
      for (std::size_t b = 0; b < 16; b += sizeof(To)) {
        check(choice, in, expected, few, a, b, factor, divisor);
        if (s == 0 && (a == b || (a + b) % 7 == 0)) check(choice, in, expected, many, a, b, factor, divisor);
      }
    }
  }
}

}  // namespace

TEST_CASE("bytes are copied at every alignment") { check_kernel<std::byte, std::byte>("hvd_copy_bytes"); }

TEST_CASE("integers are scaled and clamped, or divided exactly") {
  check_kernel<std::int8_t, std::int8_t>("hvd_copy_integers");
  check_kernel<std::uint8_t, std::uint8_t>("hvd_copy_integers");
  check_kernel<std::int16_t, std::int16_t>("hvd_copy_integers");
  check_kernel<std::uint16_t, std::uint16_t>("hvd_copy_integers");
  check_kernel<std::int32_t, std::int32_t>("hvd_copy_integers");
  check_kernel<std::uint32_t, std::uint32_t>("hvd_copy_integers");
  check_kernel<std::int64_t, std::int64_t>("hvd_copy_integers");
  check_kernel<std::uint64_t, std::uint64_t>("hvd_copy_integers");
}

TEST_CASE("floating-point numbers are scaled") {
  check_kernel<half, half>("hvd_copy_floats");
  check_kernel<bfloat16, bfloat16>("hvd_copy_floats");
  check_kernel<float, float>("hvd_copy_floats");
  check_kernel<double, double>("hvd_copy_floats");
}

TEST_CASE("floating-point numbers are scaled and converted") {
  check_kernel<float, half>("hvd_copy_floats");
  check_kernel<half, float>("hvd_copy_floats");
  check_kernel<float, bfloat16>("hvd_copy_floats");
  check_kernel<bfloat16, float>("hvd_copy_floats");
  check_kernel<double, float>("hvd_copy_floats");
  check_kernel<float, double>("hvd_copy_floats");
}

TEST_CASE("any number of threads does it, in place too") {
  std::vector<float> values(10'000);
  for (std::size_t i = 0; i != values.size(); ++i) values[i] = static_cast<float>(i);
  auto* const at = reinterpret_cast<std::byte*>(values.data() + 1);
  const auto p = std::make_unique<copy_parameters>();
  p->factor = 2.0;
  p->divisor = 1;
  const device_part part[] = {{at, at, values.size() - 1}};
  const copy_choice choice = choose_copy(dtype::float32, dtype::float32, true);
  for (const unsigned threads : {1U, 32U, 1024U}) {
    plan_copies(part, choice, *p, [&](std::uint32_t tiles) { run(choice.kernel, *p, tiles, threads); });
  }
  std::size_t wrong = 0;
  for (std::size_t i = 0; i != values.size(); ++i) wrong += values[i] != 8.0f * static_cast<float>(i) ? 1U : 0U;
  CHECK(wrong == 0);
}

TEST_CASE("poison makes NaN of every floating-point number, and nothing of it is left in bytes") {
  std::uint32_t word = 0;
  const auto p = std::make_unique<copy_parameters>();
  p->divisor = 1;
  p->poison = &word;
  const auto check = [&]<class From, class To>(dtype from, dtype to, double factor, const std::vector<From>& in,
                                               std::vector<To> out) {
    const device_part part[] = {
        {reinterpret_cast<const std::byte*>(in.data()), reinterpret_cast<std::byte*>(out.data()), in.size()}};
    const copy_choice choice = choose_copy(from, to, factor != 1.0);
    p->factor = factor;
    plan_copies(part, choice, *p, [&](std::uint32_t tiles) { run(choice.kernel, *p, tiles); });
    return out;
  };
  const std::vector<float> ones(5000, 1.0f);
  for (const double factor : {1.0, 0.5}) {
    word = 0;
    CHECK(check(dtype::float32, dtype::float32, factor, ones, ones) ==
          std::vector<float>(5000, static_cast<float>(factor)));
    word = ~word;
    for (const float x : check(dtype::float32, dtype::float32, factor, ones, ones)) REQUIRE(std::isnan(x));
    for (const hvd::half x : check(dtype::float32, dtype::float16, factor, ones, std::vector<hvd::half>(5000))) {
      REQUIRE(std::isnan(static_cast<float>(x)));
    }
    for (const float x :
         check(dtype::bfloat16, dtype::float32, factor, std::vector<hvd::bfloat16>(5001), std::vector<float>(5001))) {
      REQUIRE(std::isnan(x));
    }
    for (const double x :
         check(dtype::float64, dtype::float64, factor, std::vector<double>(77, 3.0), std::vector<double>(77))) {
      REQUIRE(std::isnan(x));
    }
  }
  CHECK(check(dtype::uint8, dtype::uint8, 1.0, std::vector<std::uint8_t>(33, 7), std::vector<std::uint8_t>(33)) ==
        std::vector<std::uint8_t>(33, 255));
}

namespace {

/// Planned, not run: the addresses are those of nothing.
struct planned {
  std::uint32_t tiles;
  std::vector<copy_part> parts;
  std::vector<std::uint32_t> first_tiles;
};
std::vector<planned> plan(const std::vector<device_part>& parts, copy_choice choice,
                          std::uint32_t most_tiles = 0x7fff'ffff) {
  std::vector<planned> launches;
  const auto p = std::make_unique<copy_parameters>();
  const auto add = [&](std::uint32_t tiles) {
    launches.push_back({tiles, {p->part, p->part + p->parts}, {p->first_tile, p->first_tile + p->parts}});
  };
  plan_copies(parts, choice, *p, add, most_tiles);
  return launches;
}
const copy_choice bytes = choose_copy(dtype::user, dtype::user, false);
std::byte* address(std::uintptr_t at) { return reinterpret_cast<std::byte*>(at); }

}  // namespace

TEST_CASE("many small tensors are one launch with a block for each") {
  std::vector<device_part> parts;
  for (std::uintptr_t i = 1; i <= copy_parameters::most; ++i)
    parts.push_back({address(0x10000 + i * 8192), address(i * 4096), 1024});
  const auto launches = plan(parts, choose_copy(dtype::float32, dtype::float32, false));
  REQUIRE(launches.size() == 1);
  CHECK(launches[0].tiles == copy_parameters::most);
  REQUIRE(launches[0].parts.size() == copy_parameters::most);
  CHECK(launches[0].parts[7].count == 4096);  // bytes
  CHECK(launches[0].first_tiles[7] == 7);
}

TEST_CASE("large tensors get blocks by their bytes, empty ones none") {
  // 2^20 elements of which each tile has 4096.
  const std::vector<device_part> parts{{address(64), address(64), 0},
                                       {address(64), address(128), 1 << 20},
                                       {address(64), address(64), 0},
                                       {address(64), address(256), 1},
                                       {address(68), address(512), 4097}};
  const auto launches = plan(parts, choose_copy(dtype::float32, dtype::bfloat16, false));
  REQUIRE(launches.size() == 1);
  CHECK(launches[0].tiles == 256 + 1 + 2);
  CHECK(launches[0].first_tiles == std::vector<std::uint32_t>{0, 256, 257});
  CHECK(plan({}, bytes).empty());
  CHECK(plan({{nullptr, nullptr, 0}}, bytes).empty());
}

TEST_CASE("what does not fit into one launch is divided") {
  const std::vector<device_part> many(copy_parameters::most + 1, {address(64), address(64), 1});
  const auto two = plan(many, bytes);
  REQUIRE(two.size() == 2);
  CHECK(two[0].parts.size() == copy_parameters::most);
  CHECK(two[1].parts.size() == 1);
  CHECK(two[1].first_tiles[0] == 0);

  const copy_choice doubles = choose_copy(dtype::float64, dtype::float32, false);
  const std::size_t tile = copy_tile_elements(doubles.from, doubles.to);
  const auto three = plan({{address(8), address(4), tile + 1}, {address(8), address(4), 5 * tile + 1}}, doubles, 3);
  REQUIRE(three.size() == 3);
  CHECK(three[0].tiles == 3);
  CHECK(three[0].parts[1].count == tile);
  CHECK(three[1].tiles == 3);
  CHECK(three[1].parts[0].in == address(8 + tile * 8));
  CHECK(three[1].parts[0].out == address(4 + tile * 4));
  CHECK(three[2].parts[0].count == tile + 1);
  CHECK(three[2].tiles == 2);
}

TEST_CASE("a tensor that no access can reach is refused, unless its bytes are all that is copied") {
  const std::vector<device_part> parts{{address(66), address(64), 3}};
  CHECK(plan(parts, choose_copy(dtype::float32, dtype::float32, false)).size() == 1);
  CHECK_THROWS_WITH_AS(plan(parts, choose_copy(dtype::float32, dtype::float32, true)),
                       doctest::Contains("does not start at a multiple of its elements' size"), hvd::error);
}

TEST_CASE("the kernel is chosen by the types and whether anything is scaled") {
  const auto chosen = [](dtype from, dtype to, bool scales) {
    const copy_choice c = choose_copy(from, to, scales);
    return std::pair(copy_kernels[c.kernel], c.each);
  };
  using choice = std::pair<std::string_view, std::size_t>;
  CHECK(chosen(dtype::boolean, dtype::boolean, false) == choice("hvd_copy_bytes", 1));
  CHECK(chosen(dtype::user, dtype::user, false) == choice("hvd_copy_bytes", 1));
  CHECK(chosen(dtype::complex128, dtype::complex128, false) == choice("hvd_copy_bytes", 16));
  CHECK(chosen(dtype::complex64, dtype::complex64, true) == choice("hvd_copy_floats", 2));
  CHECK(chosen(dtype::int8, dtype::int8, true) == choice("hvd_copy_integers", 1));
  CHECK(chosen(dtype::float32, dtype::bfloat16, false) == choice("hvd_copy_floats", 1));
  const auto says = [](dtype from, dtype to, bool scales) -> std::string {
    try {
      choose_copy(from, to, scales);
    } catch (const hvd::error& e) {
      CHECK(e.kind() == hvd::error::unsupported);
      return e.what();
    }
    return {};
  };
  CHECK(says(dtype::boolean, dtype::boolean, true) == "hvd: elements of type bool cannot be scaled on a GPU");
  CHECK(says(dtype::user, dtype::user, true) == "hvd: elements of type user cannot be scaled on a GPU");
  CHECK(says(dtype::int32, dtype::float32, false) ==
        "hvd: elements of type int32 cannot be converted to float32 on a GPU; float32 can to float16 and bfloat16, "
        "float64 to float32, and back");
  CHECK(says(dtype::complex64, dtype::float32, false).find("cannot be converted") != std::string::npos);
}

#if !defined(HVD_CUDA_FATBIN)
TEST_CASE("the PTX has all kernels") {
  std::string text;
  for (const std::string_view part : copy_ptx) text += part;
  for (const std::string_view kernel : copy_kernels) {
    CAPTURE(kernel);
    CHECK(text.find(".entry " + std::string(kernel) + "(") != std::string::npos);
  }
}
#endif

namespace {

/// A driver that runs kernels on the CPU, one at a time.
struct imitation {
  static inline std::string loaded;
  static inline int loads, unloads, pushes, launches;
  static inline cu_result answer;

  static cuda_driver table() {
    loads = unloads = pushes = launches = 0;
    answer = cu_success;
    cuda_driver t;
    t.error_name = [](cu_result, const char** text) -> cu_result { return *text = "CUDA_ERROR_OF_A_TEST", 0; };
    t.error_text = [](cu_result, const char** text) -> cu_result { return *text = "as told", 0; };
    t.context_current = [](cu_context* context) -> cu_result {
      return *context = reinterpret_cast<cu_context>(address(16)), 0;
    };
    t.context_push = [](cu_context context) -> cu_result {
      return pushes += context == reinterpret_cast<cu_context>(address(16)) ? 1 : 0, 0;
    };
    t.context_pop = [](cu_context*) -> cu_result { return pushes -= 1, 0; };
    t.module_load = [](cu_module* module, const void* image) -> cu_result {
      if (answer != cu_success) return answer;
      loaded = static_cast<const char*>(image);
      *module = reinterpret_cast<cu_module>(address(32));
      return loads += 1, 0;
    };
    t.module_unload = [](cu_module) -> cu_result { return unloads += pushes, 0; };
    t.module_function = [](cu_function* function, cu_module, const char* name) -> cu_result {
      const auto* const found = std::ranges::find(copy_kernels, std::string_view(name));
      *function = reinterpret_cast<cu_function>(address(static_cast<std::uintptr_t>(found - copy_kernels) + 1));
      return found == std::end(copy_kernels) ? cu_not_found : cu_success;
    };
    t.launch = [](cu_function function, unsigned x, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned,
                  cu_stream, void** parameters, void**) -> cu_result {
      if (answer != cu_success) return answer;
      run(reinterpret_cast<std::uintptr_t>(function) - 1, *static_cast<const copy_parameters*>(parameters[0]), x,
          threads);
      return launches += 1, 0;
    };
    return t;
  }
};

}  // namespace

TEST_CASE("tensors are packed and unpacked through a driver") {
  const cuda_driver driver = imitation::table();
  {
    cuda_copies first(driver);
    CHECK(imitation::loaded.find("hvd_copy_bytes") != std::string::npos);
    cuda_copies copies(std::move(first));
    const std::vector<float> a{1.0f, 2.0f, 3.0f}, b{10.0f, 20.0f};
    std::vector<half> packed(8);
    auto* const at = reinterpret_cast<std::byte*>(packed.data());
    const device_part in[] = {{reinterpret_cast<const std::byte*>(a.data()), at, a.size()},
                              {reinterpret_cast<const std::byte*>(b.data()), at + 8, b.size()}};
    copies(in, dtype::float32, dtype::float16, 0.5, 1, nullptr);
    CHECK(static_cast<float>(packed[2]) == 1.5f);
    CHECK(static_cast<float>(packed[5]) == 10.0f);
    std::vector<float> c(3), d(2);
    const device_part out[] = {{at, reinterpret_cast<std::byte*>(c.data()), c.size()},
                               {at + 8, reinterpret_cast<std::byte*>(d.data()), d.size()}};
    copies(out, dtype::float16, dtype::float32, 4.0, 2, nullptr);
    CHECK(c == a);
    CHECK(d == b);
    CHECK(imitation::launches == 2);
    copies({}, dtype::float32, dtype::float32, 1.0, 1, nullptr);
    CHECK(imitation::launches == 2);
    imitation::answer = 719;
    CHECK_THROWS_WITH_AS(copies(out, dtype::float16, dtype::float32, 1.0, 1, nullptr),
                         "hvd: cuLaunchKernel failed: CUDA_ERROR_OF_A_TEST (as told)", hvd::error);
  }
  CHECK(imitation::loads == 1);
  CHECK(imitation::unloads == 1);
  CHECK(imitation::pushes == 0);
}

TEST_CASE("a driver or a GPU that is too old is named as the reason") {
  const cuda_driver driver = imitation::table();
  imitation::answer = 222;  // CUDA_ERROR_UNSUPPORTED_PTX_VERSION
  try {
    cuda_copies copies(driver);
    FAIL("loaded");
  } catch (const hvd::error& e) {
    CHECK(e.kind() == hvd::error::unsupported);
    CHECK(std::string(e.what()) ==
          "hvd: the CUDA driver does not load hvd's kernels: CUDA_ERROR_OF_A_TEST (as told); they need CUDA 12.1 or "
          "later and a GPU of compute capability 8.0 or higher");
  }
  CHECK(imitation::unloads == 0);
}
