#include "uma-cli/models/hub.h"

#include <algorithm>
#include <cctype>
#include <format>
#include <iterator>
#include <map>
#include <ranges>
#include <utility>

#include <boost/json/parse.hpp>

#include "base/text.h"
#include "core/model_file_name.h"
#include "uma-cli/fields.h"
#include "uma-cli/format.h"
#include "uma-cli/printable.h"
#include "uma-cli/table.h"

namespace uma::cli {
namespace {

constexpr std::string_view kPreferred = "q4_k_m";
constexpr std::size_t kChoicesMax = 100;
constexpr double kSizeMax = 9e15;  // Largest size of which every integer is exact in a double.

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

bool is_gguf(const HubFile& file) {
  return lower_ascii(base_name(file.path)).ends_with(".gguf");
}
// Repositories also have such files of models that are not served: one is only taken by its whole name.
bool is_safetensors(const HubFile& file) {
  return lower_ascii(base_name(file.path)).ends_with(".safetensors");
}

// Whether `word` is a component of `name`, bounded by `separators` or by an end. Both are in lower case.
bool has_word(std::string_view name, std::string_view word, std::string_view separators) {
  for (std::size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || separators.contains(name[at - 1])) && (end == name.size() || separators.contains(name[end]))) return true;
  }
  return false;
}

// Whether the file belongs to a model without being one.
bool is_companion(const HubFile& file) {
  const std::string name = lower_ascii(base_name(file.path));
  return has_word(name, "mmproj", "-._") || has_word(name, "imatrix", "-._");
}

// The files of one model: all of its pieces that the listing has, in their order.
using Files = std::vector<HubFile>;

std::vector<Files> group_pieces(const std::vector<HubFile>& files) {
  std::map<std::string, Files> groups;  // By the name of the first piece.
  for (const HubFile& file : files) {
    const auto split = parse_split_name(file.path);
    groups[split ? split->file(0) : file.path].push_back(file);
  }
  std::vector<Files> models;
  for (auto& [first, pieces] : groups) {
    std::ranges::sort(pieces, {}, &HubFile::path);
    const auto twice = std::ranges::unique(pieces, {}, &HubFile::path);
    pieces.erase(twice.begin(), twice.end());
    models.push_back(std::move(pieces));
  }
  return models;
}

std::vector<Files> with_name(const std::vector<Files>& models, std::string_view name) {
  const auto with = [&](auto name_of) {
    std::vector<Files> found;
    std::ranges::copy_if(models, std::back_inserter(found), [&](const Files& files) {
      return std::ranges::any_of(files, [&](const HubFile& file) { return name_of(file) == name; });
    });
    return found;
  };
  std::vector<Files> found = with([](const HubFile& file) { return std::string_view(file.path); });
  return found.empty() ? with([](const HubFile& file) { return base_name(file.path); }) : found;
}

std::vector<Files> with_quant(const std::vector<Files>& models, std::string_view quant) {
  // A quant such as q4_0 matches q4_0 rather than q4_0_4_4.
  std::vector<Files> found;
  for (const std::string_view separators : {"-.", "-._"}) {
    std::ranges::copy_if(models, std::back_inserter(found), [&](const Files& files) {
      return has_word(lower_ascii(base_name(files.front().path)), lower_ascii(quant), separators);
    });
    if (!found.empty()) break;
  }
  return found;
}

std::string size_text(const Files& files) {
  std::uint64_t bytes = 0;
  for (const HubFile& file : files) {
    if (!file.size) return "?";
    bytes += *file.size;
  }
  return human_bytes(static_cast<double>(bytes));
}

std::string choices(const std::vector<Files>& models) {
  Table table({{""}, {"", Align::right}});
  for (const Files& files : models | std::views::take(kChoicesMax)) table.add({"  " + files.front().path, size_text(files)});
  std::string text = table.text();
  if (models.size() > kChoicesMax) text += std::format("  and {} more\n", models.size() - kChoicesMax);
  text.pop_back();
  return text;
}

// The projector of the model: of those that bear its name or none, else the only one, the one whose numbers need least care.
std::optional<HubFile> projector_for(const HubFile& model, const std::vector<Files>& all) {
  const auto split = parse_split_name(model.path);
  const std::string pair = pairing_name(base_name(split ? std::string_view(split->stem) : model.path));
  std::vector<HubFile> named;
  std::vector<HubFile> others;
  for (const Files& files : all) {
    const std::string_view name = base_name(files.front().path);
    if (files.size() > 1 || !is_gguf(files.front()) || !has_word(lower_ascii(name), "mmproj", "-._")) continue;
    const std::string own = pairing_name(name);
    (own.empty() || own == pair ? named : others).push_back(files.front());
  }
  if (named.empty() && others.size() == 1) return others.front();
  for (const std::string_view format : {"f16", "bf16", "q8_0"}) {
    for (const HubFile& file : named) {
      if (has_word(lower_ascii(base_name(file.path)), format, "-._")) return file;
    }
  }
  return named.empty() ? std::nullopt : std::optional(named.front());
}

Result<HubModel> whole_model(Files files, const HubName& name, std::optional<HubFile> projector) {
  const auto split = parse_split_name(files.front().path);
  if (split && files.size() != static_cast<std::size_t>(split->count)) {
    return fail(ExitCode::protocol, std::format("{} has only {} of the {} pieces of {}", name.repo, files.size(), split->count,
                                                printable_line(split->file(0))));
  }
  return HubModel{.files = std::move(files), .projector = std::move(projector)};
}

}  // namespace

std::string listing_url(std::string_view endpoint, const HubName& name) {
  return std::format("{}/api/models/{}/tree/{}?recursive=true", endpoint, percent_encoded(name.repo, "/"),
                     percent_encoded(name.revision));
}

std::string file_url(std::string_view endpoint, const HubName& name, std::string_view path) {
  return std::format("{}/{}/resolve/{}/{}", endpoint, percent_encoded(name.repo, "/"), percent_encoded(name.revision),
                     percent_encoded(path, "/"));
}

Result<std::vector<HubFile>> parse_listing(std::string_view text) {
  boost::system::error_code problem;
  const boost::json::value listing = boost::json::parse(text, problem);
  if (problem || !listing.is_array()) return fail(ExitCode::protocol, "the hub's list of files is not a JSON array");
  std::vector<HubFile> files;
  for (const boost::json::value& entry : listing.get_array()) {
    if (!entry.is_object() || text_field(entry.get_object(), "type") == "directory") continue;
    const boost::json::object& object = entry.get_object();
    HubFile file{.path = text_field(object, "path"), .size = {}, .sha256 = {}};
    if (file.path.empty()) continue;
    const boost::json::value* size = object.if_contains("size");
    const double bytes = number_field(object, "size");
    if (size != nullptr && size->is_number() && bytes >= 0 && bytes <= kSizeMax) file.size = static_cast<std::uint64_t>(bytes);
    if (auto sum = parse_sha256(text_field(object_field(object, "lfs"), "oid"))) file.sha256 = std::move(*sum);
    files.push_back(std::move(file));
  }
  return files;
}

std::string next_page(std::string_view link_header) {
  while (!link_header.empty()) {
    const std::size_t open = link_header.find('<');
    const std::size_t close = link_header.find('>', open);
    if (open == std::string_view::npos || close == std::string_view::npos) return "";
    const std::size_t end = std::min(link_header.find(',', close), link_header.size());
    const std::string parameters = lower_ascii(link_header.substr(close, end - close));
    if (parameters.contains("rel=\"next\"") || parameters.contains("rel=next"))
      return std::string(link_header.substr(open + 1, close - open - 1));
    link_header.remove_prefix(end);
  }
  return "";
}

Result<HubModel> choose_model(const std::vector<HubFile>& listing, const HubName& name) {
  const std::vector<Files> all = group_pieces(listing);
  std::vector<Files> found;
  if (!name.pick.empty()) {
    found = with_name(all, name.pick);
    std::erase_if(found, [](const Files& files) { return !is_gguf(files.front()) && !is_safetensors(files.front()); });
  }
  std::vector<Files> models = all;
  std::erase_if(models, [](const Files& files) { return !is_gguf(files.front()) || is_companion(files.front()); });
  if (found.empty()) {
    const bool has_choice = name.pick.empty() && models.size() > 1;
    found = name.pick.empty() && !has_choice ? models : with_quant(models, has_choice ? kPreferred : name.pick);
  }
  if (found.size() == 1) {
    Files& files = found.front();
    auto projector = is_gguf(files.front()) && !is_companion(files.front()) ? projector_for(files.front(), all) : std::nullopt;
    return whole_model(std::move(files), name, std::move(projector));
  }
  if (models.empty())
    return fail(ExitCode::usage, std::format("{} has no model in GGUF format: name another repository, or a safetensors file "
                                             "of Stable Diffusion by its whole name",
                                             name.repo));
  if (name.pick.empty()) {
    return fail(ExitCode::usage, std::format("{} has several models: choose one with {}:FILE-OR-QUANT\n{}", name.repo,
                                             name.repo, choices(models)));
  }
  return fail(ExitCode::usage, std::format("{} models of {} match \"{}\": choose one of\n{}", found.empty() ? "no" : "several",
                                           name.repo, printable_line(name.pick), choices(found.empty() ? models : found)));
}

}  // namespace uma::cli
