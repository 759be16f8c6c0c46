// hvd/pin/named.hpp: the policies that get devices by name: from the user's list, or from a scheduler.
#pragma once

#include <hvd/config.hpp>
#include <hvd/detail/function_ref.hpp>
#include <hvd/error.hpp>
#include <hvd/pin/placement.hpp>
#include <hvd/pin/policies.hpp>
#include <hvd/topology.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace hvd::inline HVD_ABI {

namespace detail {

inline bool is_mig(std::string_view name) noexcept { return name.starts_with("MIG-"); }

/// The number that a name consists of; -1 for any other name.
inline int as_ordinal(std::string_view name) noexcept {
  int number = -1;
  const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool whole = code == std::errc{} && end == name.data() + name.size() && !name.starts_with('-');
  return whole ? number : -1;
}

inline std::vector<std::string> split_names(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) names.emplace_back(take_part(text, ','));
  return names;
}

/// The GPUs that a name can mean: an ordinal, a PCI address, or a UUID or the beginning of one. UUIDs are compared
/// without "GPU-" or "MIG-": drivers differ in how they call an instance.
inline std::vector<const gpu*> meant_by(const topology& host, std::string_view name) {
  std::vector<const gpu*> found;
  const int ordinal = as_ordinal(name);
  std::string lower;
  for (const char c : name) lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const bool uuid = lower.starts_with("gpu-") || lower.starts_with("mig-");
  const std::string address = pci_address(lower);
  for (const gpu& g : host.gpus) {
    const bool same = uuid ? g.uuid.size() > 4 && std::string_view(g.uuid).substr(4).starts_with(lower.substr(4))
                      : ordinal >= 0 ? g.ordinal == ordinal
                                     : !g.pci.empty() && g.pci == address;
    if (same) found.push_back(&g);
  }
  // The process was started to see this instance alone, in a spelling that the driver does not repeat.
  if (found.empty() && host.gpus.size() == 1 && is_mig(name) && host.visible_devices == name) {
    found.push_back(&host.gpus.front());
  }
  return found;
}

/// "0,2": indices, or a UUID among them.
inline std::size_t position_in(std::string_view visible, std::string_view name) {
  std::size_t position = 0;
  for (; !visible.empty(); ++position) {
    if (take_part(visible, ',') == name) return position;
  }
  return std::string_view::npos;
}

}  // namespace detail

namespace pinning {

/// Local rank i gets the i-th device of a list. A name is an ordinal, a UUID or the beginning of one ("GPU-89"), a PCI
/// address ("0000:17:00.0"), or a MIG instance's UUID, of which a process sees one: hvdrun shows each rank its own.
struct list {
  static constexpr std::string_view name = "list";
  std::vector<std::string> devices{};

  placement operator()(const topology& host, const local_place& where) const {
    const std::size_t count = devices.size(), mine = static_cast<std::size_t>(where.local_rank);
    const auto refuse = [&](const std::string& problem, const std::string& remedy) {
      detail::fail(error_kind::invalid_argument,
                   {"pin list:", text(), ": ", detail::who(where), " ", problem, "; ", remedy});
    };
    const std::size_t limit = where.max_ranks == 0 ? mine + 1 : count * static_cast<std::size_t>(where.max_ranks);
    if (count == 0 || mine >= limit) {
      refuse(detail::joined({"has none of the ", count, " devices in the list"}),
             detail::joined({"name one for each of the ", where.local_size, " ranks of this host, or start ", limit}));
    }
    const std::string& wanted = devices[mine % count];
    if (where.starting && detail::is_mig(wanted)) {
      placement p;
      p.device = device_id{wanted, ""};
      p.ordinal = 0;
      p.reason = "in the list; the only one that its process will see";
      return p;
    }
    const std::vector<const gpu*> found = detail::meant_by(host, wanted);
    if (found.size() == 1) return detail::on_gpu(*found.front(), detail::joined({"\"", wanted, "\" in the list"}));
    if (found.size() > 1) {
      refuse(detail::joined({"cannot tell which device \"", wanted, "\" is: ", detail::label(found[0]->id()), " or ",
                             detail::label(found[1]->id())}),
             "write more of the UUID");
    }
    refuse(detail::joined({"does not see \"", wanted, "\": ", detail::visible_text(host)}),
           detail::is_mig(wanted)
               ? detail::joined({"a process sees one MIG instance, chosen before it starts: use hvdrun --pin list:",
                                 text(), ", or set CUDA_VISIBLE_DEVICES=", wanted})
               : "name a visible one by ordinal, UUID or PCI address");
    return {};
  }

  /// The names with commas between them.
  [[nodiscard]] std::string text() const {
    std::string all;
    for (const std::string& device : devices) all += (all.empty() ? "" : ",") + device;
    return all;
  }
  bool operator==(const list&) const = default;
};

/// The device that a scheduler has given to the rank's task: the one device that it sees; the first of Spark's
/// addresses; or, if Slurm grants GPUs for each task and shows all, those at its local rank.
struct from_scheduler {
  static constexpr std::string_view name = "from_scheduler";
  /// Spark's addresses of this task (TaskContext.resources()["gpu"].addresses): UUIDs, PCI addresses, or indices in the
  /// order of the PCI bus, which are those of nvidia-smi and not CUDA's.
  std::vector<std::string> addresses{};
  /// Slurm's GPUs of each task; 0: unknown.
  int gpus_per_task = 0;

  /// HVD_TASK_GPUS, addresses with commas between them, and SLURM_GPUS_PER_TASK.
  static from_scheduler of_environment() {
    return of([](const char* variable) -> std::optional<std::string> {
      const char* const value = std::getenv(variable);
      return value == nullptr ? std::nullopt : std::optional<std::string>(value);
    });
  }
  /// The same from any source of variables.
  static from_scheduler of(const config::lookup& variable) {
    from_scheduler found;
    if (const auto value = variable("HVD_TASK_GPUS")) found.addresses = detail::split_names(*value);
    if (const auto value = variable("SLURM_GPUS_PER_TASK")) {  // "2", or with a type, "a100:2"
      const std::string count = value->substr(value->rfind(':') + 1);
      found.gpus_per_task = parse_integer("SLURM_GPUS_PER_TASK", count, 0, std::numeric_limits<int>::max());
    }
    return found;
  }

  placement operator()(const topology& host, const local_place& where) const {
    if (host.gpus.size() == 1) return detail::on_gpu(host.gpus.front(), "the only GPU that the scheduler shows");
    const auto refuse = [&](const std::string& problem, std::string_view remedy) {
      detail::fail(error_kind::invalid_argument, {"pin ", name, ": ", problem, " for ", detail::who(where), "; ",
                                                  detail::visible_text(host), "; ", remedy});
    };
    if (!addresses.empty()) {
      const gpu* const given = find(host, addresses.front());
      if (given == nullptr) {
        refuse(detail::joined({"the address \"", addresses.front(), "\" (HVD_TASK_GPUS) is not a visible GPU"}),
               "let the scheduler give UUIDs, or unset CUDA_VISIBLE_DEVICES");
      }
      return detail::on_gpu(*given, detail::joined({"the task's address \"", addresses.front(), "\""}));
    }
    if (host.gpus.empty()) return detail::on_host(host);
    const int first = where.local_rank * gpus_per_task;
    if (gpus_per_task == 0 || static_cast<std::size_t>(first) >= host.gpus.size()) {
      refuse(gpus_per_task == 0 ? std::string("no scheduler names a GPU")
                                : detail::joined({"SLURM_GPUS_PER_TASK=", gpus_per_task, " leaves no GPU"}),
             "ask Slurm for --gpus-per-task and --gpu-bind, or pin by_local_rank");
    }
    return detail::on_gpu(host.gpus[static_cast<std::size_t>(first)],
                          detail::joined({"SLURM_GPUS_PER_TASK=", gpus_per_task, ", local rank ", where.local_rank}));
  }
  bool operator==(const from_scheduler&) const = default;

 private:
  /// An index is a position on the bus; if CUDA_VISIBLE_DEVICES hides some, it is one of the indices in that variable.
  /// If the variable has UUIDs, an index has no meaning.
  static const gpu* find(const topology& host, std::string_view address) {
    const int index = detail::as_ordinal(address);
    if (index < 0) {
      const std::vector<const gpu*> found = detail::meant_by(host, address);
      return found.size() == 1 ? found.front() : nullptr;
    }
    if (!host.visible_devices.empty()) {
      const std::size_t position = detail::position_in(host.visible_devices, address);
      return position < host.gpus.size() ? &host.gpus[position] : nullptr;
    }
    std::vector<const gpu*> bus;
    for (const gpu& g : host.gpus) bus.push_back(&g);
    std::stable_sort(bus.begin(), bus.end(), [](const gpu* a, const gpu* b) { return a->pci < b->pci; });
    return static_cast<std::size_t>(index) < bus.size() ? bus[static_cast<std::size_t>(index)] : nullptr;
  }
};

}  // namespace pinning

}  // namespace hvd::inline HVD_ABI
