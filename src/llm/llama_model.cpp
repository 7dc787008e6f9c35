#include "llm/llama_model.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <mutex>
#include <numeric>
#include <span>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <ggml-backend.h>
#include <llama.h>
#include <xxhash.h>

#include "base/log.h"
#include "llm/device/llama_devices.h"
#include "llm/device/lost_devices.h"
#include "llm/file/adapter_file.h"
#include "llm/file/gguf_files.h"
#include "llm/file/gguf_header.h"
#include "llm/file/llama_model_file.h"
#include "llm/file/state_values.h"
#include "llm/footprint.h"
#include "llm/llama_context.h"
#include "llm/llama_embedding.h"
#include "llm/llama_guard.h"
#include "llm/llama_log.h"
#include "llm/llama_vocab.h"
#include "llm/media/llama_projector.h"

namespace uma::llm {
namespace {

constexpr char kSpacePrefixKey[] = "tokenizer.ggml.add_space_prefix";

std::string meta_text(const llama_model* model, const char* key) {
  std::array<char, 512> buffer{};
  const std::int32_t length = llama_model_meta_val_str(model, key, buffer.data(), buffer.size());
  if (length < 0) return {};
  return {buffer.data(), std::min(static_cast<std::size_t>(length), buffer.size() - 1)};
}

}  // namespace

bool offers_amx() {
  return std::ranges::any_of(cpu_layouts(), [](ggml_backend_buffer_type_t layout) {
    return std::string_view(ggml_backend_buft_name(layout)) == "AMX";
  });
}

namespace {

// Loads the vocabulary only, the cheapest way to find out.
bool file_has_states(const std::string& path) {
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  const LoadedModel model = load_model_file(path, params);
  return model != nullptr && has_states(model.get());
}

// The text of a token in the vocabulary; empty for no token.
std::string token_text(const llama_model* model, llama_token token) {
  return token == LLAMA_TOKEN_NULL ? "" : llama_vocab_get_text(llama_model_get_vocab(model), token);
}

// For example "llama, 134.1 M parameters, Q8_0".
std::string describe(const llama_model* model) {
  const auto millions = static_cast<double>(llama_model_n_params(model)) / 1e6;
  const std::string size = millions < 1000 ? std::format("{:.3g} M", millions) : std::format("{:.3g} B", millions / 1000);
  std::string type = llama_ftype_name(llama_model_ftype(model));
  // The library adds a mark to a type that the file does not state.
  if (const std::size_t mark = type.find("(guessed)"); mark != std::string::npos) type.erase(mark, sizeof "(guessed)");
  return std::format("{}, {} parameters, {}", meta_text(model, "general.architecture"), size, type);
}

}  // namespace

Expected<std::string> model_identity(const std::string& path) {
  constexpr std::size_t kHead = 1u << 20;
  constexpr std::size_t kSample = 1u << 16;
  constexpr std::size_t kSamples = 64;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return fail(ErrorCode::model_load, std::format("{}: {}", path, std::strerror(errno)));
  struct stat status{};
  XXH3_state_t* state = XXH3_createState();
  XXH3_128bits_reset(state);
  const bool usable = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  if (usable) {
    XXH3_128bits_update(state, &status.st_size, sizeof status.st_size);
    std::string buffer(kHead, '\0');
    const auto add = [&](std::size_t bytes, off_t at) {
      const ssize_t got = ::pread(file, buffer.data(), bytes, at);
      if (got > 0) XXH3_128bits_update(state, buffer.data(), static_cast<std::size_t>(got));
    };
    add(kHead, 0);
    const off_t step = std::max<off_t>(1, status.st_size / static_cast<off_t>(kSamples));
    for (off_t at = kHead; at < status.st_size; at += step) add(kSample, at);
  }
  const XXH128_hash_t digest = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  ::close(file);
  if (!usable) return fail(ErrorCode::model_load, std::format("{}: not a regular file", path));
  return std::format("{:016x}{:016x}", digest.high64, digest.low64);
}

namespace {

class LlamaModel final : public Model {
 public:
  LlamaModel(std::shared_ptr<llama_model> model, std::unique_ptr<LlamaVocab> vocab, ModelFacts facts,
             std::vector<llama_adapter_lora*> adapters, std::optional<Pooling> pooling, DeviceOptions devices,
             const Placement& placement, RpcServers rpc_servers)
      : rpc_servers_(std::move(rpc_servers)),
        model_(std::move(model)),
        vocab_(std::move(vocab)),
        facts_(std::move(facts)),
        adapters_(std::move(adapters)),
        pooling_(pooling),
        devices_(std::move(devices)),
        state_identity_(facts_.identity) {
    facts_.devices = placement.devices;
    // States computed on another device have other bits, so they are states of another model.
    if (!placement.identity.empty()) state_identity_ += std::format(" on {}", placement.identity);
  }

  const ModelFacts& facts() const override { return facts_; }
  const Vocab& vocab() const override { return *vocab_; }
  bool is_lost() const override {
    return rpc_servers_.are_lost() || LostDevices::of_process().contain_any(devices_under(model_.get()));
  }
  Expected<std::unique_ptr<Context>> new_context(const ContextOptions& options) const override {
    return LlamaContext::create(model_, state_identity_, options, adapters_, rpc_servers_);
  }
  Expected<Unit> check_state(std::span<const std::byte> state) const override {
    return check_state_values(state, has_grid_positions(model_.get()));
  }
  Expected<std::unique_ptr<Projector>> load_projector(const std::string& path, const ProjectorOptions& options) const override {
    return load_llama_projector(path, model_, options, devices_);
  }
  Expected<std::unique_ptr<EmbeddingContext>> new_embedding(const EmbeddingOptions& options) const override {
    if (facts_.capability == Capability::chat) {
      return fail(ErrorCode::model_capability,
                  std::format("model \"{}\" is a chat model, which computes no embeddings", facts_.name));
    }
    EmbeddingOptions own = options;
    own.pooling = pooling_;
    return LlamaEmbedding::create(model_, own, rpc_servers_);
  }
  Expected<std::string> apply_chat_template(std::span<const ChatMessage> messages, bool add_generation_prompt) const override;

 private:
  const RpcServers rpc_servers_;        // Freed after the model.
  std::shared_ptr<llama_model> model_;  // Shared, because contexts may outlive this object while a worker shuts down.
  std::unique_ptr<LlamaVocab> vocab_;
  ModelFacts facts_;
  std::vector<llama_adapter_lora*> adapters_;  // Adapters as in facts_.adapters; owned by the model.
  std::optional<Pooling> pooling_;             // Given at the load.
  const DeviceOptions devices_;
  std::string state_identity_;  // Identity of the weights and of where they are computed.
};

Expected<std::string> LlamaModel::apply_chat_template(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  std::vector<llama_chat_message> views;
  std::size_t bytes = 256;
  for (const ChatMessage& message : messages) {
    views.push_back({message.role.c_str(), message.content.c_str()});
    bytes += 2 * (message.role.size() + message.content.size()) + 64;
  }
  return guarded(ErrorCode::model_capability, "formatting messages", [&]() -> Expected<std::string> {
    const char* chat_template = facts_.chat_template.empty() ? "chatml" : facts_.chat_template.c_str();
    std::string text(bytes, '\0');
    const auto run = [&] {
      return llama_chat_apply_template(chat_template, views.data(), views.size(), add_generation_prompt, text.data(),
                                       static_cast<std::int32_t>(text.size()));
    };
    std::int32_t length = run();
    if (length > static_cast<std::int32_t>(text.size())) {
      text.resize(static_cast<std::size_t>(length));
      length = run();
    }
    if (length < 0) {
      return fail(ErrorCode::model_capability,
                  "libllama does not know this model's chat template: send the formatted text as \"prompt\" instead");
    }
    text.resize(static_cast<std::size_t>(length));
    return text;
  });
}

// Loads an adapter and completes its facts.
Expected<llama_adapter_lora*> load_adapter(llama_model& model, const GgufHeader& header, Capability capability,
                                           AdapterFacts& facts) {
  const std::string& path = facts.source.path;
  if (!facts.source.problem.empty()) return fail(ErrorCode::model_load, facts.source.problem);
  if (capability != Capability::chat) return fail(ErrorCode::model_load, "only chat models have adapters");
  const auto adapter = read_adapter_header(path);
  if (!adapter) return std::unexpected(adapter.error());
  if (const auto fits = check_adapter_fits(*adapter, header); !fits) return std::unexpected(fits.error());
  if (const auto finite = check_adapter_values(path, *adapter); !finite) return std::unexpected(finite.error());
  auto identity = model_identity(path);
  if (!identity) return std::unexpected(identity.error());
  library_log().forget();
  llama_adapter_lora* const loaded = llama_adapter_lora_init(&model, path.c_str());
  if (loaded == nullptr) {
    const std::string reason = library_log().last_error();
    return fail(ErrorCode::model_load, std::format("it does not fit the model{}{}", reason.empty() ? "" : ": ", reason));
  }
  facts.identity = std::move(*identity);
  facts.bytes = adapter->weight_bytes;
  return loaded;
}

std::string without_folder(std::string message, const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  for (std::size_t at = 0; !folder.empty() && (at = message.find(folder, at)) != std::string::npos;) {
    message.erase(at, folder.size());
  }
  return message;
}

// Loads the adapters that can be used, and adds all to the facts. Null stands for an adapter that cannot.
std::vector<llama_adapter_lora*> load_adapters(llama_model& model, const GgufHeader& header,
                                               std::span<const AdapterSource> sources, ModelFacts& facts) {
  std::vector<llama_adapter_lora*> adapters;
  for (const AdapterSource& source : sources) {
    AdapterFacts& adapter = facts.adapters.emplace_back(AdapterFacts{.source = source});
    const auto loaded = guarded(ErrorCode::model_load, "loading an adapter",
                                [&] { return load_adapter(model, header, facts.capability, adapter); });
    adapters.push_back(loaded.value_or(nullptr));
    if (!loaded) {
      adapter.problem = without_folder(loaded.error().message, source.path);
      log_warning("adapter {}: {} cannot be used: {}", source.name, source.path, adapter.problem);
    }
    facts.memory_bytes += adapter.bytes;
  }
  return adapters;
}

// The templates besides the default one: tokenizer.chat_template.NAME.
std::vector<std::pair<std::string, std::string>> named_templates_of(const llama_model* model) {
  constexpr std::string_view kPrefix = "tokenizer.chat_template.";
  constexpr std::int32_t kTemplatesMax = 16;
  std::vector<std::pair<std::string, std::string>> templates;
  std::array<char, 256> key{};
  for (std::int32_t i = 0; i < llama_model_meta_count(model) && templates.size() < kTemplatesMax; ++i) {
    const std::int32_t length = llama_model_meta_key_by_index(model, i, key.data(), key.size());
    if (length < 0 || static_cast<std::size_t>(length) >= key.size()) continue;
    const std::string_view name(key.data(), static_cast<std::size_t>(length));
    if (!name.starts_with(kPrefix) || name.size() == kPrefix.size()) continue;
    std::string of_template(name.substr(kPrefix.size()));
    if (const char* text = llama_model_chat_template(model, of_template.c_str()))
      templates.emplace_back(std::move(of_template), text);
  }
  return templates;
}

// The facts that the loaded model and its header state; without its identity and the memory that it takes.
ModelFacts facts_of(const llama_model& model, const GgufHeader& header, const std::string& path,
                    std::optional<Pooling> given_pooling) {
  ModelFacts facts;
  facts.name = std::filesystem::path(path).stem().string();
  facts.description = describe(&model);
  facts.bytes = llama_model_size(&model);
  if (header.expert_count > 0) {
    facts.experts_count = static_cast<std::int32_t>(header.expert_count);
    facts.experts_used = static_cast<std::int32_t>(header.expert_used_count);
    facts.expert_bytes = std::min(header.expert_bytes, facts.bytes);
  }
  facts.parameters = llama_model_n_params(&model);
  facts.train_tokens = llama_model_n_ctx_train(&model);
  if (const char* chat_template = llama_model_chat_template(&model, nullptr)) facts.chat_template = chat_template;
  facts.named_templates = named_templates_of(&model);
  if (const auto pooling = pooling_of(&model, given_pooling)) {
    facts.capability = *pooling == Pooling::rank ? Capability::rerank : Capability::text_embedding;
    facts.text_frame = text_frame_of(llama_model_get_vocab(&model));
    if (const char* text = llama_model_chat_template(&model, "rerank")) facts.rerank_template = text;
  }
  facts.bos_text = token_text(&model, llama_vocab_bos(llama_model_get_vocab(&model)));
  facts.eos_text = token_text(&model, llama_vocab_eos(llama_model_get_vocab(&model)));
  return facts;
}

}  // namespace

void init_llama() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Without this, an abort inside ggml starts a debugger, which takes seconds.
    ::setenv("GGML_NO_BACKTRACE", "1", 0);
    llama_log_set([](ggml_log_level level, const char* text, void*) { library_log().add(level, text); }, nullptr);
    ggml_backend_load_all();
    llama_backend_init();
  });
}

std::string llama_version_text() {
  return std::format("libllama {}", llama_version());
}

namespace {

std::string make_backends_text() {
  init_llama();
  std::string text = llama_print_system_info();
  while (text.ends_with(' ') || text.ends_with('|')) text.pop_back();
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    auto* const device = ggml_backend_dev_get(i);
    if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) continue;
    text += std::format(" | {}: {}", ggml_backend_dev_name(device), ggml_backend_dev_description(device));
  }
  return text;
}

}  // namespace

std::string backends_text() {
  // The library composes its text in one string for all callers, so only one may ever call it.
  static const std::string text = make_backends_text();
  return text;
}

Expected<std::shared_ptr<const Model>> load_llama_model(const std::string& path, const LoadOptions& options) {
  init_llama();
  const auto header = read_model_header(path);
  if (!header) return std::unexpected(header.error());
  auto identity = model_identity(path);
  if (!identity) return std::unexpected(identity.error());
  library_log().forget();

  return guarded(ErrorCode::model_load, path.c_str(), [&]() -> Expected<std::shared_ptr<const Model>> {
    llama_model_params params = llama_model_default_params();
    if (!options.shares_file) params.load_mode = LLAMA_LOAD_MODE_NONE;
    // In models that compute sequences separately, which includes all models with states, the matrix units (AMX) of ggml 0.27
    // multiply only the first sequence of a call; the others get uninitialised memory (docs/decisions/0016).
    if (options.reads_weights && offers_amx() && file_has_states(path)) params.use_extra_bufts = false;
    if (!options.reads_weights) params.use_extra_bufts = false;
    const DeviceOptions device_options = options.reads_weights ? options.devices : DeviceOptions{.layers = 0};
    auto chosen = ChosenDevices::of(device_options);
    if (!chosen) return std::unexpected(chosen.error());
    struct Loaded {
      ChosenDevices devices;
      LoadedModel model;
    };
    const auto loaded = std::make_shared<Loaded>(std::move(*chosen), nullptr);
    const ChosenDevices& devices = loaded->devices;
    loaded->devices.apply(params);
    struct Progress {
      const LoadOptions& options;
      const ChosenDevices& devices;
    } progress_of_load{options, devices};
    params.progress_callback_user_data = &progress_of_load;
    params.progress_callback = [](float progress, void* data) {
      const auto& load = *static_cast<const Progress*>(data);
      if (load.devices.are_lost()) return false;
      return !load.options.on_progress || load.options.on_progress(static_cast<double>(progress));
    };
    // Deltas are tokenized as continuations, so the tokenizer must not insert a space before each. The file's setting is read
    // below and applied here, at position 0 only.
    std::array<llama_model_kv_override, 2> overrides{};
    overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_BOOL;
    std::memcpy(overrides[0].key, kSpacePrefixKey, sizeof kSpacePrefixKey);
    overrides[0].val_bool = false;
    params.kv_overrides = overrides.data();

    loaded->model = load_model_file(path, params);
    const std::shared_ptr<llama_model> model(loaded, loaded->model.get());
    const std::uint64_t own_bytes = library_log().weight_bytes();
    const std::uint64_t mapped_bytes = library_log().mapped_bytes();
    if (auto all_there = devices.rpc_servers().check(ErrorCode::model_load); !all_there) {
      return std::unexpected(all_there.error());
    }
    if (model == nullptr) {
      const std::string reason = library_log().last_error();
      if (find_lost(devices.handles(), reason)) return std::unexpected(loss_error(devices.handles(), ErrorCode::model_load));
      return fail(ErrorCode::model_load,
                  std::format("{}: the model cannot be loaded{}{}", path, reason.empty() ? "" : ": ", reason));
    }
    if (!llama_model_has_decoder(model.get()) || llama_model_has_encoder(model.get()) ||
        llama_model_is_diffusion(model.get())) {
      return fail(ErrorCode::model_load, std::format("{}: this model supports neither text generation nor embeddings", path));
    }
    const auto layers = static_cast<std::int32_t>(header->block_count);
    const std::vector<std::int32_t> counts = devices.layers_of(layers);
    const std::int32_t placed = std::accumulate(counts.begin(), counts.end(), 0);
    // Where only some layers are on a device, the others may be read from the mapped file at every token.
    const bool is_partly_on_device = placed > 0 && (placed <= layers || devices.experts_on_cpu() > 0);
    if (own_bytes > 0 && mapped_bytes > 0 && !is_partly_on_device) release_copied_weights(path);
    const bool is_spm = llama_vocab_type(llama_model_get_vocab(model.get())) == LLAMA_VOCAB_TYPE_SPM;
    const std::string prefix = meta_text(model.get(), kSpacePrefixKey);
    auto vocab = LlamaVocab::create(llama_model_get_vocab(model.get()), prefix.empty() ? is_spm : prefix == "true");
    if (!vocab) return std::unexpected(vocab.error());

    ModelFacts facts = facts_of(*model, *header, path, options.pooling);
    facts.identity = *identity;
    // The mapped range may include copied weights.
    facts.memory_bytes = own_bytes + std::min(mapped_bytes, facts.bytes) + table_bytes(*header);
    facts.on_devices = devices.bytes_on([](const std::string& buffer) { return library_log().weight_bytes_in(buffer); });
    facts.is_on_devices = placed > layers && !is_partly_on_device;
    const Placement placement = placement_of(devices.used(), counts, layers, devices.experts_on_cpu());
    auto adapters = load_adapters(*model, *header, options.adapters, facts);
    return std::make_shared<LlamaModel>(model, std::move(*vocab), std::move(facts), std::move(adapters), options.pooling,
                                        device_options, placement, devices.rpc_servers());
  });
}

}  // namespace uma::llm
