// hvd/pin/exclusive.hpp: detects ranks with a common device; ranks compare their devices before NCCL starts.
#pragma once

#include <hvd/detail/text_hash.hpp>
#include <hvd/error.hpp>
#include <hvd/topology.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// Text of at most N - 1 characters, which can be sent between ranks.
template <std::size_t N>
struct short_text {
  std::array<char, N> characters{};

  short_text() = default;
  explicit short_text(std::string_view text) {
    std::copy_n(text.begin(), std::min(text.size(), N - 1), characters.begin());
  }
  [[nodiscard]] std::string_view view() const noexcept { return {characters.data(), ::strnlen(characters.data(), N)}; }
};

/// A rank's description of its device for the others.
struct device_of_rank {
  std::uint64_t host = 0;  ///< equal on the ranks of one host
  short_text<64> host_name{}, uuid{};
  short_text<32> pci{};
  std::int32_t max_ranks = 1;
  std::int32_t rank = 0;
};

/// The name of this host is for people; its kernel's boot id makes it unique, even if containers have different names.
inline device_of_rank describe(const device_id& device, int rank, int allowed) {
  device_of_rank own;
  static_cast<void>(::gethostname(own.host_name.characters.data(), own.host_name.characters.size() - 1));
  const std::string boot = read_text({"/proc/sys/kernel/random/boot_id"});
  own.host = text_hash(boot.empty() ? std::string(own.host_name.view()) : boot);
  own.uuid = short_text<64>(device.uuid);
  own.pci = short_text<32>(device.pci);
  own.max_ranks = allowed;
  own.rank = rank;
  return own;
}

/// "ranks 0, 1 and 2"; the middle of a long list is left out.
inline std::string ranks_text(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return joined({"rank ", ranks.front()});
  std::string text = "ranks ";
  for (std::size_t i = 0; i != ranks.size(); ++i) {
    if (ranks.size() > 9 && i == 4) {
      text += joined({", ... (", ranks.size(), " ranks)"});
      i = ranks.size() - 1;
    }
    text += joined({i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]});
  }
  return text;
}

/// The sentence about ranks of one host that may not have one device, or an empty text if they may.
inline std::string too_many_on(const device_id& device, std::string_view host, const std::vector<int>& ranks,
                               int allowed) {
  if (allowed == 0 || ranks.size() <= static_cast<std::size_t>(allowed)) return {};
  const std::string limit =
      allowed == 1 ? "" : joined({", which shared:", allowed, " allows for ", allowed, " ranks only"});
  const std::string remedy = allowed == 1 ? "pin with shared (NCCL 2.30 or newer)" : "let more of them share";
  return joined({ranks_text(ranks), " on host ", host, " have one GPU, ", label(device), limit,
                 "; start fewer ranks on this host, pin each to a GPU of its own (hvd::pin, hvdrun --pin), ", remedy,
                 ", or use a transport on the host"});
}

/// The sentence for the first device that has more ranks than any of them allows; empty if there is none. A rank
/// without a device has an empty UUID.
inline std::string find_shared_device(const std::vector<device_of_rank>& all) {
  for (const device_of_rank& first : all) {
    const std::string_view uuid = first.uuid.view();
    if (uuid.empty()) continue;
    std::vector<int> ranks;
    int least = 0;
    for (const device_of_rank& other : all) {
      if (other.host != first.host || other.uuid.view() != uuid) continue;
      ranks.push_back(other.rank);
      if (other.max_ranks != 0) least = least == 0 ? other.max_ranks : std::min(least, other.max_ranks);
    }
    const std::string problem =
        too_many_on({std::string(uuid), std::string(first.pci.view())}, first.host_name.view(), ranks, least);
    if (!problem.empty()) return problem;
  }
  return {};
}

}  // namespace hvd::inline HVD_ABI::detail
