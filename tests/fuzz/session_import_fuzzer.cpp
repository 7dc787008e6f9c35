// Property: any session that is accepted from a file survives all operations of clients. The router's commits are valid
// (kv/record_check.h), the catalog stores them and returns them unchanged, also after a restart; its export is accepted again;
// every request has one reply; and no invariant is violated, above all no UMA_CHECK.
// The input has a byte with the number of operations (at most 31) and the template of the model, the operations, and the file.
// Magic, version, length, vocabulary and checksum of the file's conversation are corrected, unless the first byte requests a
// foreign vocabulary: then all tokens are computed again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <format>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/move_only_function.h"
#include "base/thrown.h"
#include "engine/lane/lane.h"
#include "engine/model/model_loader_test_support.h"
#include "engine/router/router.h"
#include "engine/session/context_shift.h"
#include "engine/session/portable_session.h"
#include "kv/catalog/record_check.h"
#include "kv/catalog/sqlite_catalog.h"
#include "kv/disk/session_file.h"
#include "testing/fake_model.h"
#include "testing/image_bytes.h"
#include "testing/recording_sink.h"
#include "testing/sim_clock.h"

namespace {

namespace fs = std::filesystem;

using namespace uma;
using testing::FakeModel;
using testing::FakeOptions;

const TenantId kTenant{"fuzz"};
constexpr std::size_t kOperationsMax = 31;
constexpr std::size_t kSessionsMax = 8;
// A template that changes the text of earlier messages.
constexpr std::string_view kForgetful =
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + (message.content if loop.last or message.role == "
    "'user' else message.content.upper()) + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}";

// A folder, in memory if possible, for the lifetime of the program.
class Folder {
 public:
  Folder() {
    std::string name = (fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path().string()) + "/uma-fuzz-XXXXXX";
    UMA_CHECK(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  void clear() {
    for (const auto& entry : fs::directory_iterator(path_)) fs::remove_all(entry.path());
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// The real catalog beside a copy of its input; both must agree.
class WatchedCatalog final : public kv::Catalog {
 public:
  explicit WatchedCatalog(std::string path) : path_(std::move(path)) { open(); }

  std::vector<kv::SessionSummary> load() override {
    std::vector<kv::SessionSummary> all = sqlite_->load();
    UMA_CHECK(all.size() == kept_.size());
    for (const kv::SessionSummary& summary : all) UMA_CHECK(summary == kv::summary_of(*kept_.at(summary.id)));
    return all;
  }
  std::unordered_map<SessionId, std::vector<std::string>> load_image_extras() override { return sqlite_->load_image_extras(); }
  void commit(kv::RecordPtr record, kv::RecordPtr before, Done done) override {
    UMA_CHECK(kv::impossible_part(*record).empty());
    const auto known = kept_.find(record->id);
    UMA_CHECK(known == kept_.end() ? before == nullptr : before != nullptr && *before == *known->second);
    kept_[record->id] = record;
    sqlite_->commit(std::move(record), std::move(before), [done = std::move(done)](Expected<Unit> kept) mutable {
      UMA_CHECK(kept.has_value());
      done(std::move(kept));
    });
  }
  void remove(const SessionId& id, Done done) override {
    kept_.erase(id);
    sqlite_->remove(id, std::move(done));
  }
  void read(const SessionId& id, OnRead on_read) override {
    sqlite_->read(id, [expected = kept_.at(id), on_read = std::move(on_read)](Expected<kv::RecordPtr> read) mutable {
      UMA_CHECK(read.has_value() && **read == *expected);
      on_read(std::move(read));
    });
  }
  bool step() override { return sqlite_->step(); }

  // Reopens the catalog and checks that it has everything. Requires: no call is pending.
  void reopen() {
    sqlite_.reset();
    open();
    for (const auto& [id, record] : kept_) {
      bool was_read = false;
      read(id, [&](const Expected<kv::RecordPtr>&) { was_read = true; });
      step();
      UMA_CHECK(was_read);
    }
  }
  [[nodiscard]] const std::map<SessionId, kv::RecordPtr>& kept() const { return kept_; }

 private:
  void open() {
    auto opened = kv::SqliteCatalog::open(path_);
    UMA_CHECK(opened.has_value());
    sqlite_ = std::move(*opened);
  }

  const std::string path_;
  std::unique_ptr<kv::SqliteCatalog> sqlite_;
  std::map<SessionId, kv::RecordPtr> kept_;
};

// A daemon without threads.
class Life {
 public:
  Life(const std::shared_ptr<const FakeModel>& model, const FakeOptions& options, Folder& folder)
      : model_(model), options_(options), folder_(folder), catalog_((folder.path() / "catalog.db").string()) {
    store_.open({});
    begin();
  }

  [[nodiscard]] Expected<SessionId> import(const std::string& name, PortableFile file) {
    const auto made = ask<ImportedSession>([&](auto reply) {
      router_->tasks().answer(
          std::move(reply), router_->transfer().import_session(kTenant, {.name = name, .file = std::move(file), .model = {}}));
    });
    if (!made) return std::unexpected(made.error());
    sessions_.push_back(made->info.id);
    return made->info.id;
  }
  // Runs the operation of the byte on one of the sessions.
  void operate(std::uint8_t operation);
  void restart() {
    lane_->close();
    lane_->cancel_all();
    router_.reset();
    lane_.reset();
    vision_.reset();
    catalog_.reopen();
    begin();
  }
  // Checks every possible result of a full context for each session.
  void check_drops() const {
    for (const auto& [id, record] : catalog_.kept()) {
      const auto length = static_cast<std::int32_t>(record->chain.size() + record->pending.size());
      for (const std::int32_t length_max : {0, length / 4, length / 2, length - 1}) {
        const auto drop = engine::choose_drop(engine::droppable_of(*record), length, length_max);
        if (!drop) continue;
        UMA_CHECK(kv::impossible_part(engine::without_oldest_turns(*record, drop->turns)).empty());
      }
    }
  }

 private:
  void begin() {
    kept_images_ = std::make_shared<image::KeptImages>((folder_.path() / "images").string(), 1 << 20);
    engine::RouterOptions options;
    options.seed = ++lives_;
    options.record_bytes_max = 0;  // Unused sessions are read from the catalog each time.
    options.on_images_free = [this](const std::vector<std::string>& ids, const auto& is_used) {
      kept_images_->remove(ids, is_used);
    };
    router_ = std::make_unique<engine::Router>(options, source_, catalog_, store_, work_, clock_);
    vision_ = std::make_shared<image::ImageEncoder>(
        std::make_unique<testing::FakeProjector>(),
        image::ImageEncoderOptions{.allowed_dirs = {}, .cache_bytes_max = 1000, .kept = kept_images_}, clock_);
    engine::LaneOptions lane;
    lane.store = &store_;
    lane.stored_tokens_min = 1;
    lane.encode = [vision = vision_](const TenantId& tenant, const std::string& image, std::stop_token end,
                                     MoveOnlyFunction<void(Expected<image::EncodedPtr>)> then) {
      vision->post(tenant, [vision, tenant, image, end = std::move(end), then = std::move(then)]() mutable {
        then(vision->encode(tenant, image, end));
      });
    };
    lane_ = std::make_unique<engine::Lane>(
        std::move(lane), std::make_unique<testing::FakeContext>(options_), nullptr, model_->vocab(), clock_,
        [this](engine::GenerationResult result) {
          router_->post([this, result = std::move(result)]() mutable { router_->generations().on_result(std::move(result)); });
        });
    router_->on_loaded("fake", engine::chat_model(model_, {lane_.get()}, vision_));
  }
  void settle() {
    constexpr int kStepsMax = 20'000;
    int steps = 0;
    for (int quiet = 0; quiet < 3;) {
      bool worked = router_->step();
      worked |= work_.step();
      worked |= vision_->step();
      worked |= catalog_.step();
      worked |= lane_->step().did_work;
      worked |= store_.step();
      quiet = worked ? 0 : quiet + 1;
      clock_.advance(std::chrono::milliseconds(1));
      UMA_CHECK(++steps < kStepsMax);
    }
    lane_->check_invariants();
    router_->check_invariants();
    UMA_CHECK(thrown_count() == 0);
  }
  template <class T, class Call>
  Expected<T> ask(Call&& call) {
    std::vector<Expected<T>> replies;
    call(Promise<T>([&replies](Expected<T> got) { replies.push_back(std::move(got)); }));
    settle();
    UMA_CHECK(replies.size() == 1 && (replies[0].has_value() || !replies[0].error().message.empty()));
    return std::move(replies[0]);
  }
  void generate(GenerateRequest request, std::int32_t max_tokens) {
    request.options.max_tokens = max_tokens;
    const auto sink = std::make_shared<testing::RecordingSink>();
    router_->generations().start(RequestId{++last_request_}, kTenant, std::move(request), {sink});
    settle();
    UMA_CHECK(sink->terminal);
  }
  void respond(const SessionId& session, int how);
  void export_and_import(const SessionId& session, bool with_kv);
  [[nodiscard]] static Input input(SessionMode mode, std::string text) {
    if (mode == SessionMode::text) return {.text = std::move(text), .messages = {}};
    return {.text = {}, .messages = {{"user", std::move(text)}}};
  }

  const std::shared_ptr<const FakeModel> model_;  // Shared with the router's model table.
  const FakeOptions options_;
  Folder& folder_;
  testing::SimClock clock_;
  WatchedCatalog catalog_;
  kv::StateStore store_{{.warm_bytes_max = 1 << 20}, nullptr, clock_};
  engine::NamedModels source_;
  uma::WorkPool work_;
  std::shared_ptr<image::KeptImages> kept_images_;
  std::shared_ptr<image::ImageEncoder> vision_;
  std::unique_ptr<engine::Router> router_;
  std::unique_ptr<engine::Lane> lane_;
  std::vector<SessionId> sessions_;
  std::uint64_t last_request_ = 0;
  std::uint64_t lives_ = 0;
};

void Life::operate(std::uint8_t operation) {
  const int how = operation / 16;
  const SessionId id = sessions_[static_cast<std::size_t>(how) % sessions_.size()];
  if (!catalog_.kept().contains(id)) return;  // The session has ended.
  const kv::RecordPtr record = catalog_.kept().at(id);
  const std::string text(static_cast<std::size_t>(1 + how * how), static_cast<char>('a' + how));
  switch (operation % 16) {
    case 0:
      (void)ask<SessionInfo>([&](auto reply) {
        router_->tasks().answer(std::move(reply),
                                router_->sessions().append(kTenant, {.session = id.value, .input = input(record->mode, text)}));
      });
      break;
    case 1:
    case 2:
      generate({.model = {}, .session = id.value, .input = input(record->mode, text), .options = {}, .response = {}},
               1 + 16 * how);
      break;
    case 3:
      generate({.model = {}, .session = id.value, .input = {}, .options = {}, .response = {}}, 1 + how);
      break;
    case 4:
      generate({.model = {}, .session = id.value, .input = {}, .regenerate = true, .options = {}, .response = {}}, 1 + how);
      break;
    case 5:
      (void)ask<SessionInfo>([&](auto reply) {
        router_->tasks().answer(std::move(reply),
                                router_->sessions().rewind(kTenant, id.value, record->turns_dropped + how / 2));
      });
      break;
    case 6: {
      if (sessions_.size() >= kSessionsMax) break;
      const auto fork = ask<SessionInfo>([&](auto reply) {
        router_->tasks().answer(std::move(reply), router_->sessions().fork(kTenant, {.session = id.value}));
      });
      if (fork) sessions_.push_back(fork->id);
      break;
    }
    case 7: {
      const bool waits = !record->pending_messages.empty();
      const std::vector<ChatMessage>& messages = waits ? record->pending_messages : record->messages;
      const std::int32_t begin = waits || record->turns.empty() ? 0 : record->turns.back().messages_begin;
      const auto number = static_cast<std::int32_t>(messages.size()) - 1 - begin;
      const bool begins_with_instructions = record->has_instructions && begin == 0 && (!waits || record->messages.empty());
      const auto turns = record->turns_dropped + static_cast<std::int32_t>(record->turns.size());
      const MessagePosition place{.turn = waits ? turns : turns - 1, .number = number - (begins_with_instructions ? 1 : 0)};
      (void)ask<SessionDetail>([&](auto reply) {
        router_->tasks().answer(std::move(reply), router_->sessions().remove_last_message(kTenant, id.value, place));
      });
      break;
    }
    case 8:
    case 9:
      respond(id, how);
      break;
    case 10:
      (void)ask<SessionDetail>(
          [&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().get(kTenant, id.value)); });
      break;
    case 11:
    case 12:
      if (sessions_.size() < kSessionsMax) export_and_import(id, how % 2 == 0);
      break;
    case 13: {
      GenerateRequest request;
      request.session = id.value;
      request.input.messages = {{"user", text}};
      request.input.images = {{.message = 0, .at = 0, .source = testing::image_of_one_pixel(static_cast<char>('a' + how))}};
      generate(std::move(request), 1 + how);
      break;
    }
    case 14:
      restart();
      break;
    default:
      (void)ask<Unit>(
          [&](auto reply) { router_->tasks().answer(std::move(reply), router_->sessions().end(kTenant, id.value)); });
      break;
  }
}

void Life::respond(const SessionId& session, int how) {
  GenerateRequest request;
  request.session = session.value;
  request.input.messages = {{"user", "why?"}};
  request.response.emplace();
  request.response->id = std::format("{:016x}", last_request_);
  if (how % 2 == 1) request.response->instructions = std::string(static_cast<std::size_t>(how), 'i');
  if (how % 4 >= 2) request.response->on_full = how % 8 >= 4 ? OnFull::shift : OnFull::error;
  const kv::SessionRecord& record = *catalog_.kept().at(session);
  if (how >= 8 && !record.responses.empty()) request.response->previous = record.responses.front()->id;
  generate(std::move(request), 1 + how);
}

// The export of a session can be imported again, and is equal.
void Life::export_and_import(const SessionId& session, bool with_kv) {
  const kv::SessionRecord record = *catalog_.kept().at(session);
  auto exported = ask<ExportedSession>([&](auto reply) {
    router_->tasks().answer(std::move(reply), router_->transfer().export_session(kTenant, session.value, with_kv));
  });
  UMA_CHECK(exported.has_value());
  const auto made = import(std::format("copy {}", sessions_.size()), std::move(exported->file));
  if (!made) {
    UMA_CHECK(made.error().code == ErrorCode::limit_context);  // The session was full.
    return;
  }
  const kv::SessionRecord& copy = *catalog_.kept().at(*made);
  UMA_CHECK(copy.chain == record.chain && copy.pending == record.pending);
  const auto without_receipt = [](kv::Turn turn) {  // Files have no receipts.
    turn.receipt = nullptr;
    return turn;
  };
  UMA_CHECK(std::ranges::equal(copy.turns, record.turns, {}, {}, without_receipt));
  UMA_CHECK(copy.messages == record.messages && copy.pending_messages == record.pending_messages);
}

struct Model {
  explicit Model(std::string_view chat_template)
      : options{.cells = 512,
                .sequences = 2,
                .has_chat_template = true,
                .chat_template = chat_template,
                .end_every = 40,
                .checks_image_rows = false},
        model(std::make_shared<const FakeModel>(options)),
        vocabulary(engine::vocabulary_of(*model)) {}
  FakeOptions options;
  std::shared_ptr<const FakeModel> model;  // As in the router.
  kv::Checksum vocabulary;
};

// Corrects the input's file like an attacker who knows the format.
Bytes put_right(std::span<const std::byte> input, const Model& model, bool is_of_model) {
  constexpr std::size_t kVocabularyAt = 20;
  constexpr std::size_t kSmallest = kVocabularyAt + 2 * sizeof(kv::Checksum);
  Bytes bytes(input.begin(), input.end());
  if (bytes.size() < kSmallest) bytes.resize(kSmallest, std::byte{0});
  std::uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 12, sizeof length);
  if (length < kSmallest || length > bytes.size()) length = static_cast<std::uint32_t>(bytes.size());
  std::memcpy(bytes.data(), "umasessn", 8);
  if (bytes[8] != std::byte{1}) bytes[8] = static_cast<std::byte>(kv::kSessionFileVersion);
  std::ranges::fill(std::span(bytes).subspan(9, 3), std::byte{0});
  std::memcpy(bytes.data() + 12, &length, sizeof length);
  if (is_of_model) std::memcpy(bytes.data() + kVocabularyAt, &model.vocabulary, sizeof model.vocabulary);
  const kv::Checksum hash = kv::hash_of(std::span(bytes).first(length - sizeof(kv::Checksum)));
  std::memcpy(bytes.data() + length - sizeof hash, &hash, sizeof hash);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Folder folder;
  static const Model kPlain{{}};
  static const Model kRewriting{kForgetful};
  if (size == 0) return 0;
  init_log(LogLevel::error);
  const std::size_t operations_count = std::min<std::size_t>(data[0] % (kOperationsMax + 1), size - 1);
  const Model& model = (data[0] & 0x20) != 0 ? kRewriting : kPlain;
  const std::span<const std::uint8_t> operations(data + 1, operations_count);
  const Bytes file =
      put_right(std::as_bytes(std::span(data, size).subspan(1 + operations_count)), model, (data[0] & 0x40) == 0);

  // Most files are refused, so a daemon is only made for accepted ones.
  const auto conversation =
      kv::decode_session_file(std::span(file).first(kv::conversation_bytes(std::span(file).first<kv::kSessionPrefixBytes>())));
  if (!conversation) {
    UMA_CHECK(conversation.error().code == ErrorCode::proto_field && !conversation.error().message.empty());
    return 0;
  }
  folder.clear();
  Life life(model.model, model.options, folder);
  const auto imported = life.import("", file_of(file));
  if (!imported) {
    UMA_CHECK(!imported.error().message.empty());
    return 0;
  }
  life.check_drops();
  for (const std::uint8_t operation : operations) {
    life.operate(operation);
    life.check_drops();
  }
  life.restart();
  return 0;
}
