// tests/gpu/standin/kernels.cpp: functions of the host that stand in for kernels, by the kernels' names.
#include "gpu/standin/cuda.hpp"

#include <hvd/cuda/copy.cuh>

#include <algorithm>
#include <iterator>
#include <memory>

namespace hvd::standin {

namespace {

// (words, count, value): for the tests of the stand-in itself.
void fill(const launch& l) {
  auto* const words = launch::host<std::uint32_t>(l.parameter<std::uint64_t>(0));
  std::fill_n(words, l.parameter<std::uint64_t>(1), l.parameter<std::uint32_t>(2));
}
std::vector<range> filled(const launch& l) {
  return {{l.parameter<std::uint64_t>(0), l.parameter<std::uint64_t>(1) * sizeof(std::uint32_t), true}};
}

// hvd's own kernels: the bodies that a GPU runs, one thread after another.
copy_parameters& parameters_of(const launch& l, std::unique_ptr<copy_parameters>& copy) {
  copy = std::make_unique<copy_parameters>();
  std::memcpy(static_cast<void*>(copy.get()), l.parameters.at(0).data(), sizeof *copy);
  return *copy;
}
std::uint64_t number(const std::byte* address) { return reinterpret_cast<std::uint64_t>(address); }

kernel make_copy(std::size_t place) {
  const auto run = [place](const launch& l) {
    std::unique_ptr<copy_parameters> copy;
    copy_parameters& p = parameters_of(l, copy);
    for (copy_part* part = p.part; part != p.part + p.parts; ++part) {
      if (part->count == 0) continue;
      part->in = launch::host<std::byte>(number(part->in));
      part->out = launch::host<std::byte>(number(part->out));
    }
    if (p.poison != nullptr) p.poison = launch::host<const std::uint32_t>(reinterpret_cast<std::uint64_t>(p.poison));
    const host_copy_kernel body = find_host_copy_kernel(place);
    for (unsigned block = 0; block != l.grid[0]; ++block) {
      for (unsigned thread = 0; thread != l.block[0]; ++thread) body(p, block, thread, l.block[0]);
    }
  };
  const auto touches = [](const launch& l) {
    std::unique_ptr<copy_parameters> copy;
    const copy_parameters& p = parameters_of(l, copy);
    std::vector<range> all;
    for (const copy_part* part = p.part; part != p.part + p.parts; ++part) {
      all.push_back({number(part->in), part->count << p.from.shift, false});
      all.push_back({number(part->out), part->count << p.to.shift, true});
    }
    if (p.poison != nullptr) all.push_back({reinterpret_cast<std::uint64_t>(p.poison), sizeof *p.poison, false});
    return all;
  };
  return {copy_kernels[place], {sizeof(copy_parameters)}, run, touches};
}

}  // namespace

const kernel* find_kernel(std::string_view name) {
  static const std::vector<kernel> kernels = [] {
    std::vector<kernel> all{{"hvd_standin_fill", {8, 8, 4}, fill, filled}};
    for (std::size_t i = 0; i != std::size(copy_kernels); ++i) all.push_back(make_copy(i));
    return all;
  }();
  const auto found = std::find_if(kernels.begin(), kernels.end(), [&](const kernel& k) { return k.name == name; });
  return found == kernels.end() ? nullptr : &*found;
}

}  // namespace hvd::standin
