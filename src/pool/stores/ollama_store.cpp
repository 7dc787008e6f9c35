#include "pool/stores/ollama_store.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <format>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "base/utf8.h"
#include "core/sampling_fields.h"
#include "json/field_reader.h"
#include "pool/stores/repository_files.h"

namespace uma::pool {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kManifestBytesMax = 1u << 20;
constexpr std::size_t kTextBytesMax = 1u << 20;  // A system message, or parameters.
constexpr std::string_view kHost = "registry.ollama.ai";
constexpr std::string_view kOwner = "library";
constexpr std::string_view kLatest = "latest";
constexpr std::string_view kHash = "sha256:";
constexpr std::string_view kKind = "application/vnd.ollama.image.";

// The whole file; nullopt: it cannot be read, or is larger.
std::optional<std::string> read_whole(const fs::path& path, std::size_t bytes_max) {
  std::error_code unknown;
  if (!fs::is_regular_file(path, unknown)) return std::nullopt;  // Others may block for ever.
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes_max + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (!file.eof() || text.size() > bytes_max) return std::nullopt;
  return text;
}

// The object in a text; nullopt: there is none.
std::optional<boost::json::object> parse_object(std::string_view text) {
  boost::system::error_code problem;
  boost::json::value value = json::parse(text, {}, problem);
  if (problem || !value.is_object()) return std::nullopt;
  return std::move(value.get_object());
}

// A part of a model.
struct Layer {
  std::string kind;  // "model", "projector", "adapter", "system", "params", "template", "messages", "license".
  std::string sha256;
};

// The parts of the model with this manifest; empty: it is none.
std::vector<Layer> layers_of(const boost::json::object& manifest) {
  std::vector<Layer> layers;
  json::FieldReader fields(manifest);
  const boost::json::array* array = fields.array("layers");
  if (array == nullptr) return {};
  for (const boost::json::value& each : *array) {
    if (!each.is_object()) return {};
    json::FieldReader layer(each.get_object());
    const std::string kind = layer.required_text("mediaType");
    const std::string digest = layer.required_text("digest");
    if (!layer.ok() || !digest.starts_with(kHash) || !is_sha256(std::string_view(digest).substr(kHash.size()))) return {};
    if (kind.starts_with(kKind)) layers.push_back({kind.substr(kKind.size()), digest.substr(kHash.size())});
  }
  return layers;
}

// The name that Ollama shows: it leaves out its own host, and the owner of its own library.
std::string shown_name(std::string_view host, std::string_view owner, std::string_view name, std::string_view tag) {
  std::string shown;
  if (host != kHost) shown += std::format("{}/", host);
  if (host != kHost || owner != kOwner) shown += std::format("{}/", owner);
  return std::format("{}{}:{}", shown, name, tag);
}

// Takes the parameters that umad has, too. Others, such as `seed`, are a request's.
void take_parameters(const boost::json::object& parameters, StoredModel& model) {
  for (const SamplingFieldInfo& info : sampling_fields()) {
    const boost::json::value* value = parameters.if_contains(info.name);
    if (value == nullptr || !value->is_number()) continue;
    const auto number = value->to_number<double>();
    if (info.accepts(number)) model.defaults.sampling[info.field] = number;
  }
  const boost::json::value* window = parameters.if_contains("num_ctx");
  if (window != nullptr && window->is_int64() && window->get_int64() > 0 && window->get_int64() <= 1 << 24)
    model.sequence_cells = static_cast<std::int32_t>(window->get_int64());
}

// A layer that cannot be read counts as absent.
void take_layers(const fs::path& blobs, const std::vector<Layer>& layers, StoredModel& model) {
  const auto path_of = [&](const Layer& layer) { return blobs / ("sha256-" + layer.sha256); };
  for (const Layer& layer : layers) {
    if (layer.kind == "model" && model.path.empty()) {
      model.path = path_of(layer).string();
      model.sha256 = layer.sha256;
    } else if (layer.kind == "projector") {
      model.projectors.push_back(path_of(layer).string());
    } else if (layer.kind == "system") {
      model.settings += layer.sha256;
      auto text = read_whole(path_of(layer), kTextBytesMax);
      if (text && is_utf8(*text) && !text->contains('\0')) model.defaults.system = *std::move(text);
    } else if (layer.kind == "params") {
      model.settings += layer.sha256;
      const auto text = read_whole(path_of(layer), kTextBytesMax);
      if (const auto parameters = text ? parse_object(*text) : std::nullopt) take_parameters(*parameters, model);
    }
  }
}

}  // namespace

void read_ollama_store(const std::string& folder, StoreContents& contents) {
  const fs::path root = fs::path(folder) / "manifests";
  note_folder((fs::path(folder) / "blobs").string(), contents);  // A manifest may be written in place.
  for (const std::string& file : files_below(root.string(), 3, contents)) {
    const fs::path place = fs::path(file).lexically_relative(root);
    std::vector<std::string> parts;
    for (const fs::path& part : place) parts.push_back(part.string());
    if (parts.size() != 4) continue;
    const auto text = read_whole(file, kManifestBytesMax);
    const auto manifest = text ? parse_object(*text) : std::nullopt;
    StoredModel model{.store = "Ollama", .names = {shown_name(parts[0], parts[1], parts[2], parts[3])}};
    if (parts[3] == kLatest) model.names.push_back(model.names.front().substr(0, model.names.front().rfind(':')));
    const std::vector<Layer> layers = manifest ? layers_of(*manifest) : std::vector<Layer>();
    take_layers(fs::path(folder) / "blobs", layers, model);
    const bool has_adapter = std::ranges::contains(layers, "adapter", &Layer::kind);
    if (model.path.empty()) {
      contents.remarks.push_back(std::format("{}: not a manifest of Ollama with a model", file));
    } else if (has_adapter) {
      contents.remarks.push_back(
          std::format("{}: not registered, because it has an adapter, which umad takes from a card", file));
    } else {
      contents.models.push_back(std::move(model));
    }
  }
}

}  // namespace uma::pool
