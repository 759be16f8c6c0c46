// hvd/topology/gpus.hpp: the GPUs that the CUDA driver shows, and their places in sysfs.
#pragma once

#include <hvd/cuda/driver.hpp>
#include <hvd/cuda/identity.hpp>
#include <hvd/error.hpp>
#include <hvd/topology/files.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::inline HVD_ABI {

/// The identity of a device, independent of its number in a process.
struct device_id {
  std::string uuid{};  ///< "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", or "MIG-..." for a MIG instance
  std::string pci{};   ///< "0000:17:00.0": domain, bus, device and function, in lower case
  bool operator==(const device_id&) const = default;
};

/// A GPU, or a MIG instance, that this process can use.
struct gpu {
  int ordinal = 0;  ///< CUDA's number for it, valid in this process only
  std::string uuid{};
  std::string pci{};
  std::string name{};
  int numa_node = -1;       ///< -1 if unknown, as in many virtual machines
  std::vector<int> cpus{};  ///< the CPUs near it, usable or not; empty if unknown
  std::size_t memory = 0;   ///< bytes

  [[nodiscard]] device_id id() const { return {uuid, pci}; }
  bool operator==(const gpu&) const = default;
};

namespace detail {

/// "GPU-8932f937-... (0000:17:00.0)", as messages name a device.
inline std::string label(const device_id& device) {
  return device.pci.empty() ? device.uuid : joined({device.uuid, " (", device.pci, ")"});
}

/// A PCI address as sysfs writes it. CUDA writes capital letters, NVML a domain of eight digits.
inline std::string pci_address(std::string_view text) {
  std::string address;
  for (const char c : text) address += c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  const std::size_t colon = address.find(':');
  if (colon == std::string::npos) return address;
  if (address.find(':', colon + 1) == std::string::npos) return "0000:" + address;
  while (address.find(':') > 4 && address.front() == '0') address.erase(0, 1);
  return address;
}

/// Fills in node and CPUs. The driver's answer counts if sysfs has none, for example because it is hidden from a
/// container. "-1" in sysfs is an answer: the host does not report the node, and its list of CPUs then has all.
inline void locate(gpu& g, const cuda_driver& cuda, cu_device device, std::string_view root) {
  const std::string folder = joined({root, "sys/bus/pci/devices/", g.pci, "/"});
  if (read_text({folder, "numa_node"}).empty()) {
    int node = -1;
    if (cuda.device_attribute(&node, cu_attribute_host_numa_id, device) != cu_success || node < 0) return;
    g.numa_node = node;
  } else {
    g.numa_node = read_number({folder, "numa_node"}, -1);
  }
  if (g.numa_node < 0) return;
  g.cpus = read_cpu_list({folder, "local_cpulist"});
  if (g.cpus.empty()) g.cpus = read_cpu_list({root, "sys/devices/system/node/node", g.numa_node, "/cpulist"});
}

/// The GPU of this number; one without a UUID if the driver fails.
inline gpu read_gpu(const cuda_driver& cuda, int ordinal, std::string_view root) {
  gpu found{.ordinal = ordinal};
  cu_device device = 0;
  cu_uuid uuid{};
  std::array<char, 256> text{};
  if (cuda.device_get(&device, ordinal) != cu_success || cuda.device_uuid(&uuid, device) != cu_success) return found;
  if (cuda.device_name(text.data(), static_cast<int>(text.size()) - 1, device) == cu_success) found.name = text.data();
  found.uuid = device_uuid(uuid, found.name.find(" MIG ") != std::string::npos);
  text = {};
  if (cuda.device_pci(text.data(), static_cast<int>(text.size()) - 1, device) == cu_success) {
    found.pci = pci_address(text.data());
  }
  if (cuda.device_memory(&found.memory, device) != cu_success) found.memory = 0;
  locate(found, cuda, device, root);
  return found;
}

inline std::vector<gpu> read_gpus(const cuda_driver& cuda, std::string_view root) {
  int count = 0;
  if (cuda.device_count(&count) != cu_success) count = 0;
  std::vector<gpu> gpus;
  for (int i = 0; i < count; ++i) gpus.push_back(read_gpu(cuda, i, root));
  return gpus;
}

}  // namespace detail

}  // namespace hvd::inline HVD_ABI
