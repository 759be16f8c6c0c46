// digits/parallel.hpp: what data-parallel programs do again and again, in terms of hvd's collectives.
#pragma once

#include "checksum.hpp"

#include <hvd/allgather.hpp>
#include <hvd/broadcast.hpp>
#include <hvd/eigen.hpp>
#include <hvd/transport.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace digits {

/// Runs f on rank 0 only. If it throws there, every rank throws the same sentence: if rank 0 alone knew the
/// error, the others would learn no more than that it is gone.
void on_rank_0(hvd::Transport auto& comm, auto f) {
  std::string trouble;
  if (comm.rank() == 0) {
    try {
      f();
    } catch (const std::exception& e) {
      trouble = e.what();
    }
  }
  std::array<std::uint64_t, 1> length{trouble.size()};
  hvd::broadcast(comm, length);
  if (length[0] == 0) return;
  std::vector<std::uint8_t> text(trouble.begin(), trouble.end());
  text.resize(length[0]);
  hvd::broadcast(comm, text);
  throw std::runtime_error(std::string(text.begin(), text.end()));
}

/// The part of `whole` that this rank works on. The parts of all ranks are the whole, whatever their number,
/// and differ by at most one in length; some are empty if there are more ranks than elements.
template <class T>
std::span<T> shard(const hvd::Transport auto& comm, std::span<T> whole) {
  const auto rank = static_cast<std::size_t>(comm.rank());
  const auto size = static_cast<std::size_t>(comm.size());
  const std::size_t begin = whole.size() * rank / size;
  return whole.subspan(begin, whole.size() * (rank + 1) / size - begin);
}

/// Throws on every rank, naming one that differs, unless all hold the same bits.
void check_same_bits(hvd::Transport auto& comm, const Eigen::VectorXf& weights, const std::string& when) {
  const std::span values(weights.data(), static_cast<std::size_t>(weights.size()));
  const std::array<std::uint64_t, 1> mine{hash64(std::as_bytes(values))};
  std::vector<std::uint64_t> all(static_cast<std::size_t>(comm.size()));
  hvd::allgather(comm, mine, all);
  const auto other = std::ranges::find_if(all, [&](std::uint64_t hash) { return hash != all[0]; });
  if (other != all.end()) {
    throw std::runtime_error(when + ", the weights of rank " + std::to_string(other - all.begin()) +
                             " differ from those of rank 0");
  }
}

}  // namespace digits
