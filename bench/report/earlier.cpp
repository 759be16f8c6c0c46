// bench/report/earlier.cpp: reads results, and takes from them the rows that this run measures again.
#include <bench/report/earlier.hpp>

#include <bench/report/settings.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <vector>

namespace hvd::bench {
namespace {

using json = nlohmann::ordered_json;
constexpr const char* folder = "bench/results";

/// Whether all that both say of these keys is the same.
template <class Keys>
bool agree(const json& a, const json& b, const Keys& keys) {
  return std::all_of(std::begin(keys), std::end(keys),
                     [&](const char* k) { return !a.contains(k) || !b.contains(k) || a[k] == b[k]; });
}

/// Whether a series is of this machine, and measured in the same way.
bool same(const json& then, const json& now) {
  constexpr const char* machine[] = {"cpu", "cores", "l2", "l3"};
  constexpr const char* how[] = {"transport", "algorithm",  "buffers", "mode",  "cadence",
                                 "unalign",   "over_ranks", "pinned",  "model", "fusion_bytes"};
  return then.at("machine").at("cpu") == now["machine"]["cpu"] && then.at("collective") == now["collective"] &&
         then.at("ranks") == now["ranks"] && agree(then["machine"], now["machine"], machine) && agree(then, now, how);
}

/// The time of a result; 0 if it has none, or is wrong.
double time_in(const json& result, const char* place) {
  const json& cell = result.at(place);
  if (!result.at("error").is_null() || cell.is_null()) return 0;
  return cell.at("nwrong").is_null() || cell.at("nwrong") == 0 ? cell.at("time").get<double>() : 0;
}

}  // namespace

bool Earlier::read(const std::string& path, const options& o, const machine& m) {
  std::ifstream text(path);
  const json all = json::parse(text);
  const json now = settings_of(o, m);
  std::set<key> wanted;
  for (const dtype type : o.types) {
    for (const std::size_t size : sizes_of(o)) {
      const std::size_t real = size_of_message(o.kind, count_of(o.kind, size, o.ranks, type), o.ranks, type);
      for (const redop op : o.ops) {
        for (const int root : o.roots) wanted.emplace(real, type_name(type), op_text(o, op), root_number(o, root));
      }
    }
  }
  rows_.clear();
  for (const json& series : all.contains("series") ? all["series"] : json::array({all})) {
    for (const json& result : series.at("results")) {
      json then = series.at("config");
      then.update(result);  // bench/compare: the model and the fusion buffer of each result
      if (!same(then, now)) continue;
      const key row(result.at("size"), result.at("type"), result.at("redop"), result.at("root"));
      const double us = time_in(result, o.out_of_place ? "out_of_place" : "in_place");
      const std::string library = result.at("library");
      if (us <= 0 || library == "limit" || !wanted.contains(row)) continue;
      earlier_times& t = rows_[row];
      if (library == "hvd") {
        t.hvd = us;
      } else if (t.peers == 0 || us < t.peers) {
        t.peers = us;
        t.best_peer = library;
      }
      date_ = then.at("date");
    }
  }
  return !rows_.empty();
}

Earlier::Earlier(const options& o, const machine& m) {
  if (o.earlier == "none" || o.transport == "nccl") return;
  if (o.names_earlier()) {
    if (!std::ifstream(o.earlier))
      throw usage_error("--earlier " + o.earlier + " cannot be read: " + std::strerror(errno));
    try {
      if (read(o.earlier, o, m)) file_ = o.earlier;
    } catch (const json::exception& e) {
      throw usage_error("--earlier " + o.earlier +
                        " is not a file of hvd-bench --json or of bench/compare: " + e.what());
    }
    return;
  }
  std::vector<std::filesystem::path> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  // Names begin with the date; the second of a day has one that is longer.
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.stem() > b.stem(); });
  for (const auto& path : files) {
    try {
      if (read(path.string(), o, m)) {
        file_ = path.string();
        return;
      }
    } catch (const json::exception&) {  // of another benchmark
    }
  }
}

earlier_times Earlier::find(std::size_t size, const std::string& type, const std::string& op, int root) const {
  const auto found = rows_.find({size, type, op, root});
  return found == rows_.end() ? earlier_times{} : found->second;
}

}  // namespace hvd::bench
