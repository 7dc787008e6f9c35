#include "umad/yaml_map.h"

#include <cerrno>
#include <cstring>
#include <format>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <utility>

namespace uma::umad {
namespace {

constexpr off_t kBytesMax = 64 << 10;

}  // namespace

MapReader::MapReader(const YAML::Node& map, std::string& problem) : map_(map), problem_(problem) {
  if (!map_.IsMap()) complain("keys and values are missing");
}

void MapReader::finish(std::size_t maps_inside) {
  if (problem_.empty() && map_.size() != taken_ + maps_inside) complain("there are unknown keys");
}

std::optional<std::string> MapReader::take_text(const char* key) {
  if (!problem_.empty()) return std::nullopt;
  const YAML::Node value = map_[key];
  if (!value || !value.IsScalar()) {
    complain(std::string(key) + " is missing");
    return std::nullopt;
  }
  ++taken_;
  return value.Scalar();
}

void MapReader::complain(std::string what) {
  if (problem_.empty()) problem_ = std::move(what);
}

Reader<std::string> any_text() {
  return [](std::string_view text) -> std::expected<std::string, std::string> { return std::string(text); };
}

std::expected<void, std::string> check_version(MapReader& top, const std::string& problem, std::int64_t newest) {
  const std::int64_t version = top.take("version", integer(1, 1'000'000));
  if (problem.empty() && version > newest) {
    return std::unexpected(std::format("it was made by a newer umad (format {}; this version reads {})", version, newest));
  }
  if (!problem.empty()) return std::unexpected("it is damaged: " + problem);
  return {};
}

Machine take_machine(MapReader& map, std::int64_t cores_max) {
  Machine machine;
  machine.cpu = map.take("cpu", any_text());
  machine.cores = static_cast<std::int32_t>(map.take("cores", integer(1, cores_max)));
  machine.library = map.take("library", any_text());
  return machine;
}

std::expected<void, std::string> check_origin(const std::string& model_found, const Machine& found,
                                              const std::string& model_wanted, const Machine& wanted) {
  if (model_found != model_wanted) return std::unexpected("it is for another model");
  if (found.cpu != wanted.cpu || found.cores != wanted.cores) {
    return std::unexpected(std::format("it is for another machine ({}, {} cores)", found.cpu, found.cores));
  }
  return {};
}

std::string yaml_string(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return result + '"';
}

std::expected<std::optional<std::string>, std::string> read_small_file(const std::string& path) {
  struct stat facts{};
  if (::stat(path.c_str(), &facts) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    return std::unexpected(std::string(std::strerror(errno)));
  }
  if (!S_ISREG(facts.st_mode) || facts.st_size > kBytesMax) return std::unexpected("it is damaged: not a small regular file");
  const std::ifstream file(path, std::ios::binary);
  if (!file) return std::unexpected(std::string(std::strerror(errno)));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace uma::umad
