// bench/report/result_file.hpp: the JSON file of -J: it appears whole or not at all.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace hvd::bench {

/// Before anything is measured. Errors: usage_error if it could not be written, with the reason.
void check_result_file(const std::string& path);

/// Writes to a temporary file next to it, which is then renamed. Errors: std::runtime_error.
void write_result_file(const std::string& path, const nlohmann::ordered_json& all);

}  // namespace hvd::bench
