// bench/report/engine_report.cpp: a line for each schedule of each library, and the comparison.
#include <bench/report/engine_report.hpp>

#include <bench/report/settings.hpp>

#include <hvd/version.hpp>

#include <nlohmann/json.hpp>

#include <cstdio>

namespace hvd::bench {
namespace {

using json = nlohmann::ordered_json;

std::string label(const engine_cell& c) { return std::string(name(c.what)) + (c.traced ? "+timeline" : ""); }

json json_of(const timing& t) {
  return {{"median", t.median}, {"p99", t.p99},   {"min", t.least},
          {"max", t.most},      {"mean", t.mean}, {"iterations", t.iterations}};
}

}  // namespace

void print_head(const options& o, const machine& m, const engine_result& run,
                const std::vector<library_line>& libraries, const std::vector<rank_line>& ranks) {
  const double megabytes = static_cast<double>(run.parameters * hvd::size_of(o.types[0])) * 1e-6;
  std::printf("# hvd-bench version %s\n", std::string(version).c_str());
  std::printf("# engine: %d ranks, transport %s, %s: %zu gradients with %zu elements, %.1f MB of %s, %s\n", o.ranks,
              o.transport.c_str(), std::string(name(o.parameters)).c_str(), run.gradients, run.parameters, megabytes,
              std::string(type_name(o.types[0])).c_str(), std::string(name(o.ops[0])).c_str());
  std::printf(
      "# backward pass: %g ms on %s, jitter %g %%, any of %u next, seed %llu; fusion buffer of calls: %zu bytes\n",
      o.passes.backward_seconds * 1e3, o.passes.on_cpu ? "the rank's CPU" : "an accelerator", o.passes.jitter * 1e2,
      o.passes.window, static_cast<unsigned long long>(o.passes.seed), o.fusion_bytes);
  std::printf(
      "# step: from its begin to the last gradient reduced, %s; exposed: what of it is after the backward pass of\n"
      "# the slowest rank\n",
      std::string(averaging_names[static_cast<int>(o.over_ranks)]).c_str());
  print_where(o, m, libraries, ranks);
  std::printf("#\n# %12s  %16s  %9s  %9s  %9s  %9s  %6s\n", "library", "schedule", "step", "p99", "exposed", "p99",
              "#wrong");
  std::printf("# %12s  %16s  %9s  %9s  %9s  %9s  %6s\n", "", "", "(ms)", "(ms)", "(ms)", "(ms)", "");
  std::fflush(stdout);
}

void print(const engine_result& run, const options& o, const std::vector<library_line>& lines,
           const std::string& interruption) {
  if (!interruption.empty()) std::printf("# Interrupted by %s: not all was measured\n", interruption.c_str());
  for (const engine_cell& c : run.cells) {
    if (c.steps.empty()) {
      if (c.error != lines[c.library].missing) {
        std::printf("# %s, %s: %s\n", lines[c.library].name.c_str(), label(c).c_str(), c.error.c_str());
      }
      continue;
    }
    std::printf("%14s  %16s  %9.3f  %9.3f  %9.3f  %9.3f  %6s\n", lines[c.library].name.c_str(), label(c).c_str(),
                c.step.median * 1e-3, c.step.p99 * 1e-3, c.beyond.median * 1e-3, c.beyond.p99 * 1e-3,
                c.wrong ? std::to_string(*c.wrong).c_str() : "N/A");
  }
  const engine_cell &plain = run.find(0, schedule::engine, false), &traced = run.find(0, schedule::engine, true);
  std::printf("#\n");
  const auto against = [&](const char* what, const engine_cell* peer) {
    if (peer == nullptr || plain.steps.empty()) return;
    std::printf("# Best peer, %-24s: %s, %s: step %.2f times the engine's, exposed %.2f times\n", what,
                lines[peer->library].name.c_str(), label(*peer).c_str(), peer->step.median / plain.step.median,
                peer->beyond.median / plain.beyond.median);
  };
  against("a call for each tensor", run.best_peer({schedule::each, schedule::each_after}));
  against("fused, after", run.best_peer({schedule::fused_after}));
  if (!plain.steps.empty() && !traced.steps.empty()) {
    std::printf("# Timeline on against off             : a step takes %.2f %% of the time\n",
                100 * traced.step.median / plain.step.median);
  }
  if (run.latency.iterations != 0) {
    std::printf("# 8 bytes by name, waited for at once  : %.2f us, p99 %.2f us\n", run.latency.median, run.latency.p99);
  }
  if (run.idle_cpu) {
    std::printf("# Idle, all ranks together, for %4g s  : %.4f %% of a core, %llu wake-ups\n", o.passes.idle_seconds,
                100 * *run.idle_cpu, static_cast<unsigned long long>(run.idle_woken));
  }
  const bool checked =
      std::any_of(run.cells.begin(), run.cells.end(), [](const engine_cell& c) { return c.wrong.has_value(); });
  std::printf("# Out of bounds values : %llu %s\n#\n", static_cast<unsigned long long>(run.wrong()),
              run.wrong() != 0 ? "FAILED"
              : checked        ? "OK"
                               : "(nothing was checked)");
  std::fflush(stdout);
}

json json_of(const engine_result& run, const options& o, const machine& m, const std::vector<library_line>& lines,
             const std::vector<rank_line>& ranks, const std::string& interruption) {
  json all;
  all["config"] = settings_of(o, m);
  add_where(all, m, lines, ranks);
  all["results"] = json::array();
  for (const engine_cell& c : run.cells) {
    all["results"].push_back({{"library", lines[c.library].name},
                              {"schedule", name(c.what)},
                              {"timeline", c.traced},
                              {"step", c.steps.empty() ? json() : json_of(c.step)},
                              {"exposed", c.steps.empty() ? json() : json_of(c.beyond)},
                              {"nwrong", c.wrong ? json(*c.wrong) : json()},
                              {"error", c.error.empty() ? json() : json(c.error)}});
  }
  all["latency"] = run.latency.iterations == 0 ? json() : json_of(run.latency);
  all["idle"] = run.idle_cpu ? json{{"cpu", *run.idle_cpu}, {"woken", run.idle_woken}} : json();
  all["out_of_bounds"] = run.wrong();
  all["interrupted"] = interruption.empty() ? json() : json(interruption);
  return all;
}

}  // namespace hvd::bench
