#include "wire/ollama/ollama_models.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <vector>

#include "base/sha256.h"
#include "core/sampling_fields.h"
#include "json/json_writer.h"
#include "wire/ollama/ollama_encoder.h"

namespace uma::wire {
namespace {

constexpr std::string_view kLatest = ":latest";

std::string_view architecture_of(const ModelInfo& model) {
  return model.file.architecture.empty() ? "unknown" : std::string_view(model.file.architecture);
}

// The number of parameters as a text, such as "8.2B".
std::string parameter_size(std::uint64_t parameters) {
  const auto count = static_cast<double>(parameters);
  if (count >= 1e9) return std::format("{:.1f}B", count / 1e9);
  if (count >= 1e6) return std::format("{:.1f}M", count / 1e6);
  return std::format("{:.1f}K", count / 1e3);
}

// An id that changes with the file. It is no digest of the contents: reading them would take minutes.
std::string digest_of(const ModelInfo& model) {
  Sha256 digest;
  digest.add(std::format("{}\n{}\n{}", model.name, model.file.bytes, model.file.modified_s));
  return digest.hex();
}

bool is_listed(const ModelInfo& model) {
  const bool has_api = model.capability != Capability::rerank && model.capability != Capability::text_to_image;
  return model.problem.empty() && has_api;
}

void write_capabilities(json::ObjectWriter& object, const ModelInfo& model) {
  std::vector<std::string_view> names;
  if (model.capability == Capability::text_embedding) {
    names = {"embedding"};
  } else if (model.capability == Capability::text_to_image) {
    names = {"image"};
  } else if (model.capability != Capability::rerank) {
    names = {"completion", "tools"};
    if (model.reads_images) names.push_back("vision");
    if (model.reads_audio) names.push_back("audio");
    if (model.reasons) names.push_back("thinking");
    if (model.fills_gaps) names.push_back("insert");
  }
  std::string& out = object.begin("capabilities");
  json::append_array(out, names, [&](std::string_view name) { json::append_string(out, name); });
}

void write_details(json::ObjectWriter& parent, const ModelInfo& model) {
  json::ObjectWriter details(parent.begin("details"));
  details.field("parent_model", "");
  details.field("format", "gguf");
  details.field("family", architecture_of(model));
  std::string& out = details.begin("families");
  out += '[';
  json::append_string(out, architecture_of(model));
  out += ']';
  details.field("parameter_size", parameter_size(model.parameters));
  details.field("quantization_level", model.file.quantization.empty() ? "unknown" : std::string_view(model.file.quantization));
  details.field("context_length", model.sequence_tokens_max);
  details.field("embedding_length", model.file.embedding_length);
  details.close();
}

void write_name_and_size(json::ObjectWriter& object, const ModelInfo& model) {
  const std::string name = with_tag(model.name);
  object.field("name", name);
  object.field("model", name);
  object.field("size", model.bytes);
  object.field("digest", digest_of(model));
  write_details(object, model);
}

}  // namespace

std::string with_tag(std::string_view model) {
  // A colon in front of a slash belongs to the address of a registry.
  const bool has_tag = model.substr(model.rfind('/') + 1).contains(':');
  return has_tag ? std::string(model) : std::format("{}{}", model, kLatest);
}

std::string_view without_latest_tag(std::string_view model) {
  if (model.ends_with(kLatest)) model.remove_suffix(kLatest.size());
  return model;
}

std::string ollama_version_json(std::string_view umad_version) {
  // Programs compare the three numbers: GitHub Copilot wants 0.6.4 and Codex 0.13.4, and Open WebUI ignores what follows a
  // hyphen.
  constexpr std::string_view kApi = "0.14.0";
  std::string out;
  json::ObjectWriter object(out);
  object.field("version", umad_version.empty() ? std::string(kApi) : std::format("{}-uma.{}", kApi, umad_version));
  object.close();
  return out;
}

std::string ollama_tags_json(std::span<const ModelInfo> models) {
  std::string out;
  json::ObjectWriter object(out);
  std::vector<ModelInfo> listed(models.begin(), models.end());
  std::erase_if(listed, [](const ModelInfo& model) { return !is_listed(model); });
  json::append_array(object.begin("models"), listed, [&](const ModelInfo& model) {
    json::ObjectWriter row(out);
    write_name_and_size(row, model);
    row.field("modified_at", rfc3339(model.file.modified_s));
    write_capabilities(row, model);
    row.close();
  });
  object.close();
  return out;
}

std::string ollama_ps_json(std::span<const ModelInfo> models, std::int64_t now_s) {
  constexpr std::int64_t kNever_s = 7'258'118'400;  // The year 2200, which every client can represent.
  std::string out;
  json::ObjectWriter object(out);
  std::vector<ModelInfo> loaded(models.begin(), models.end());
  std::erase_if(loaded, [](const ModelInfo& model) { return model.state != ModelState::ready; });
  json::append_array(object.begin("models"), loaded, [&](const ModelInfo& model) {
    json::ObjectWriter row(out);
    write_name_and_size(row, model);
    const std::int64_t idle_s = std::llround(std::ceil(model.idle_unload_s));
    row.field("expires_at", rfc3339(idle_s > 0 ? now_s + idle_s : kNever_s));
    row.field("size_vram", 0);
    row.field("context_length", model.sequence_tokens_max);
    row.close();
  });
  object.close();
  return out;
}

std::string ollama_show_json(const ModelInfo& model) {
  const std::string_view architecture = architecture_of(model);
  std::string parameters = std::format("num_ctx {}", model.sequence_tokens_max);
  std::string modelfile = std::format("FROM {}\nPARAMETER {}\n", with_tag(model.name), parameters);
  for (const SamplingDefault& known : model.sampling.values) {
    const std::string parameter = std::format("{} {}", info_of(known.field).name, known.value);
    parameters += '\n' + parameter;
    modelfile += std::format("PARAMETER {}\n", parameter);
  }
  std::string out;
  json::ObjectWriter object(out);
  object.field("license", "");
  object.field("modelfile", modelfile);
  object.field("parameters", parameters);
  object.field("template", "");
  write_details(object, model);
  json::ObjectWriter info(object.begin("model_info"));
  info.field("general.architecture", architecture);
  info.field("general.basename", model.file.title.empty() ? model.name : model.file.title);
  info.field("general.parameter_count", model.parameters);
  const auto of_architecture = [&](std::string_view key, std::int32_t value) {
    out += ',';
    json::append_string(out, std::format("{}.{}", architecture, key));
    out += ':';
    json::append_integer(out, static_cast<std::int64_t>(value));
  };
  of_architecture("context_length", model.sequence_tokens_max);
  of_architecture("embedding_length", model.file.embedding_length);
  info.close();
  write_capabilities(object, model);
  object.field("modified_at", rfc3339(model.file.modified_s));
  object.close();
  return out;
}

}  // namespace uma::wire
