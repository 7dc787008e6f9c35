// The options of one generation that the user gave. The daemon's defaults apply to all others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <boost/json/object.hpp>

namespace uma::cli {

struct GenerationFlags {
  std::optional<std::int64_t> max_tokens;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  std::optional<double> min_p;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;
  bool no_stream = false;

  void add_to(boost::json::object& request) const;
};

}  // namespace uma::cli
