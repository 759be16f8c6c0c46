// bench/report/settings.hpp: the settings of a measurement, as JSON.
#pragma once

#include <bench/options.hpp>
#include <bench/report/machine.hpp>

#include <hvd/version.hpp>

#include <nlohmann/json.hpp>

#include <cstdlib>

namespace hvd::bench {

/// A row's columns "redop" and "root".
inline std::string op_text(const options& o, redop op) { return reduces(o.kind) ? std::string(name(op)) : "none"; }
inline int root_number(const options& o, int root) { return has_root(o.kind) ? root : -1; }

/// Everything that influences a result; null for values chosen by size.
inline nlohmann::ordered_json settings_of(const options& o, const machine& m) {
  using json = nlohmann::ordered_json;
  const auto names = [](const auto& values) {
    json all = json::array();
    for (const auto v : values) all.push_back(name(v));
    return all;
  };
  json types = json::array(), peers = json::array(), environment = json::object();
  for (const dtype t : o.types) types.push_back(type_name(t));
  for (const peer_option& p : o.peers) peers.push_back(p.command.empty() ? p.name : p.name + "=" + p.command);
  for (const char* const variable : {"HVD_CHECK", "HVD_TIMEOUT", "HVD_SHM_DIR", "HOROVOD_FUSION_THRESHOLD",
                                     "HOROVOD_CACHE_CAPACITY", "HOROVOD_AUTOTUNE"}) {
    if (const char* const value = std::getenv(variable)) environment[variable] = value;
  }
  json c = {{"version", version}, {"date", timestamp()}, {"command", o.command}};
  c["machine"] = {{"cpu", m.cpu}, {"cores", m.cpus.size()}, {"l2", m.l2}, {"l3", m.l3}, {"kernel", m.kernel}};
  c["environment"] = environment;
  c["collective"] = name(o.kind);
  c["ranks"] = o.ranks;
  c["types"] = types;
  c["redops"] = reduces(o.kind) ? names(o.ops) : json::array();
  c["roots"] = has_root(o.kind) ? json(o.roots) : json::array();
  c["min_bytes"] = o.min_bytes;
  c["max_bytes"] = o.max_bytes;
  c["step_bytes"] = o.step_factor > 1 ? json() : json(o.step_bytes);
  c["step_factor"] = o.step_factor > 1 ? json(o.step_factor) : json();
  c["warmup"] = o.warmup ? json(*o.warmup) : json();  // by size: with each result
  c["iterations"] = o.iterations ? json(*o.iterations) : json();
  c["most_iterations"] = o.iterations ? json() : json(most_iterations(o));
  c["seconds_per_cell"] = o.seconds;
  c["limit_seconds"] = o.limit_seconds;
  c["checks"] = o.checks;
  c["cycles"] = o.cycles;
  c["rounds"] = o.rounds;
  c["transport"] = o.transport;
  if (o.transport == "nccl") c["ranks_per_gpu"] = o.ranks_per_gpu;
  c["algorithm"] = o.algorithm.empty() ? "automatic" : o.algorithm;
  c["buffers"] = name(o.memory);
  c["mode"] = name(o.state);
  c["cadence"] = name(o.pace);
  c["over_ranks"] = averaging_names[static_cast<int>(o.over_ranks)];
  c["out_of_place"] = o.out_of_place;
  c["in_place"] = o.in_place && works_in_place(o.kind);
  c["unalign"] = o.unalign;
  c["pinned"] = o.pin;
  c["peers"] = peers;
  c["limit"] = o.limit;
  c["steady"] = o.steady;
  c["min_bandwidth"] = o.min_bandwidth;
  if (has_model(o.kind)) {
    c["model"] = name(o.parameters);
    c["fusion_bytes"] = o.fusion_bytes;
  }
  if (o.kind == collective::engine) {
    c["backward_ms"] = o.passes.backward_seconds * 1e3;
    c["on_cpu"] = o.passes.on_cpu;
    c["jitter"] = o.passes.jitter;
    c["window"] = o.passes.window;
    c["seed"] = o.passes.seed;
    c["idle_seconds"] = o.passes.idle_seconds;
  }
  return c;
}

}  // namespace hvd::bench
