#include "wire/own/request_codec.h"

#include <cmath>
#include <format>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace uma::wire {
namespace {

// Decodes {"id":"r1",FIELDS} and returns its body, which must be a BodyT.
template <class BodyT>
BodyT decode(const std::string& fields) {
  auto request = decode_request(R"({"id":"r1",)" + fields + "}");
  if (!request) {
    ADD_FAILURE() << fields << ": " << request.error().error.message;
    return BodyT{};
  }
  EXPECT_EQ(request->id, "r1");
  auto* body = std::get_if<BodyT>(&request->body);
  if (body == nullptr) {
    ADD_FAILURE() << fields << ": another type";
    return BodyT{};
  }
  return std::move(*body);
}

GenerateRequest generate(const std::string& fields) {
  return decode<GenerateRequest>(R"("prompt":"hi",)" + fields);
}

// "CODE message" of a refused {"id":"r1",FIELDS}, which must keep its id.
std::string refusal(const std::string& fields) {
  const auto request = decode_request(R"({"id":"r1",)" + fields + "}");
  if (request) return "accepted";
  EXPECT_EQ(request.error().id, "r1") << fields;
  return std::string(code_name(request.error().error.code)) + " " + request.error().error.message;
}

// The same for a whole body that has no usable id.
std::string refusal_without_id(std::string_view body) {
  const auto request = decode_request(body);
  if (request) return "accepted";
  EXPECT_EQ(request.error().id, std::nullopt) << body;
  return std::string(code_name(request.error().error.code)) + " " + request.error().error.message;
}

struct Refusal {
  std::string fields;
  std::string answer;
};

void expect_refusals(const std::vector<Refusal>& table) {
  for (const Refusal& row : table) EXPECT_EQ(refusal(row.fields), row.answer) << row.fields;
}

// --- the frame and its id

TEST(DecodeRequest, RefusesWhatIsNotAJsonObject) {
  for (const std::string body :
       {"", "{", "{]", "nul", "{\"id\":\"a\"} x", "\xff\xfe", "{\"id\":\"a\",\"prompt\":\"\\ud800\"}"}) {
    EXPECT_EQ(refusal_without_id(body).substr(0, 33), "E_PROTO_001 the frame is not JSON") << body;
  }
  for (const char* body : {"[]", "1", "\"text\"", "null", "true"}) {
    EXPECT_EQ(refusal_without_id(body), "E_PROTO_001 the frame must be one JSON object") << body;
  }
}

TEST(DecodeRequest, RefusesJsonThatIsTooDeep) {
  const std::string deep = R"({"id":"a","x":)" + std::string(100'000, '[');
  EXPECT_EQ(refusal_without_id(deep).substr(0, 33), "E_PROTO_001 the frame is not JSON");
}

TEST(DecodeRequest, RefusesABadIdWithoutRepeatingIt) {
  const std::vector<Refusal> table = {
      {R"({"type":"ping"})", "E_PROTO_003 field \"id\" is required"},
      {R"({"id":null,"type":"ping"})", "E_PROTO_003 field \"id\" is required"},
      {R"({"id":7,"type":"ping"})", "E_PROTO_003 field \"id\" must be a string, got number"},
      {R"({"id":"","type":"ping"})", "E_PROTO_003 field \"id\" must not be empty"},
      {R"({"id":")" + std::string(129, 'x') + R"(","type":"ping"})",
       "E_PROTO_003 field \"id\" is 129 bytes, at most 128 are accepted"},
      {R"({"id":"a\u0000b","type":"ping"})", "E_PROTO_003 field \"id\" must not contain NUL characters"},
      {"{\"id\":\"a\xff\",\"type\":\"ping\"}", "E_PROTO_003 field \"id\" is not valid UTF-8"},
  };
  for (const Refusal& row : table) EXPECT_EQ(refusal_without_id(row.fields), row.answer) << row.fields;
}

TEST(DecodeRequest, AcceptsTheLongestId) {
  const std::string id(128, 'x');
  const auto request = decode_request(R"({"type":"ping","id":")" + id + "\"}");
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->id, id);
}

// --- the type

TEST(DecodeRequest, TypeIsGenerateWhenOnlyInputIsThere) {
  EXPECT_EQ(decode<GenerateRequest>(R"("prompt":"hello")").input.text, "hello");
  EXPECT_EQ(decode<GenerateRequest>(R"("messages":[{"role":"user","content":"hello"}])").input.messages.size(), 1u);
}

TEST(DecodeRequest, RefusesAMissingOrUnknownType) {
  const std::string known =
      "; known: generate, generate_stream, regenerate, create_session, append_input, cancel, end_session, fork_session, "
      "update_session, rewind_session, touch, get_session, list_sessions, export_session, import_session, import_data, "
      "embed_image, "
      "describe_image, generate_image, embed, rerank, load_model, unload_model, pull_model, models, metrics, trace, ping, "
      "watch, get_receipt";
  expect_refusals({
      {R"("x":1)", "E_PROTO_003 field \"type\" is required"},
      {R"("session_id":"s")", "E_PROTO_003 field \"type\" is required"},
      {R"("type":5)", "E_PROTO_003 field \"type\" must be a string, got number"},
      {R"("type":"")", "E_PROTO_004 unknown request type \"\"" + known},
      {R"("type":"generat","prompt":"hi")", "E_PROTO_004 unknown request type \"generat\"" + known},
      {R"("type":")" + std::string(65, 'x') + "\"", "E_PROTO_004 unknown request type" + known},
      {R"("type":"load_model","model":7)", "E_PROTO_003 field \"model\" must be a string, got number"},
      {R"("type":"embed_image")", "E_PROTO_003 field \"data\" or \"path\" or \"url\" is required, and only one is allowed"},
      {R"("type":"embed_image","data":"a","path":"b")",
       "E_PROTO_003 field \"data\" or \"path\" or \"url\" is required, and only one is allowed"},
      {R"("type":"embed_image","images":[])", "E_PROTO_003 field \"images\" has 0 images, but must have 1 to 64"},
      {R"("type":"embed_image","images":[{"data":"a"},7])", "E_PROTO_003 field \"images[1]\" must be an object"},
      {R"("type":"embed_image","images":[{"path":""}])", "E_PROTO_003 field \"images[0].path\" must not be empty"},
      {R"("type":"describe_image","query":"what?")",
       "E_PROTO_003 field \"data\" or \"path\" or \"url\" is required, and only one is allowed"},
      {R"("type":"describe_image","data":"a")", "E_PROTO_003 field \"query\" is required"},
      {R"("type":"generate_image")", "E_PROTO_003 field \"prompt\" is required"},
  });
}

TEST(DecodeRequest, IgnoresUnknownFieldsWhateverTheyHold) {
  const GenerateRequest request =
      decode<GenerateRequest>("\"prompt\":\"hi\",\"audio\":{\"a\":[1,{}]},\"x\":\"\xff\",\"y\":\"\\u0000\",\"z\":1e400");
  EXPECT_EQ(request.input.text, "hi");
}

// --- files of sessions

TEST(DecodeRequest, AFileComesInParts) {
  EXPECT_EQ(decode<ExportSessionRequest>(R"("type":"export_session","session_id":"tale")").session, "tale");
  EXPECT_FALSE(decode<ExportSessionRequest>(R"("type":"export_session","session_id":"tale")").with_kv);
  EXPECT_TRUE(decode<ExportSessionRequest>(R"("type":"export_session","session_id":"tale","kv":true)").with_kv);
  EXPECT_EQ(decode<ImportSessionRequest>(R"("type":"import_session")").name, "");
  EXPECT_EQ(decode<ImportSessionRequest>(R"("type":"import_session","name":"tale")").name, "tale");
  const auto part = decode<ImportDataRequest>(R"("type":"import_data","target":"7","data":"AP9h")");
  EXPECT_EQ(part.target, "7");
  EXPECT_EQ(part.data, (Bytes{std::byte{0}, std::byte{255}, std::byte{'a'}}));
  EXPECT_FALSE(part.is_last);
  const auto last = decode<ImportDataRequest>(R"("type":"import_data","target":"7","data":"","last":true)");
  EXPECT_TRUE(last.data.empty() && last.is_last);
  expect_refusals({
      {R"("type":"export_session")", "E_PROTO_003 field \"session_id\" is required"},
      {R"("type":"import_session","name":"")", "E_PROTO_003 field \"name\" must not be empty"},
      {R"("type":"import_data","data":"Zm9v")", "E_PROTO_003 field \"target\" is required"},
      {R"("type":"import_data","target":"1")", "E_PROTO_003 field \"data\" is required"},
      {R"("type":"import_data","target":"1","data":"Zm9")", "E_PROTO_003 field \"data\" is not valid base64"},
      {R"("type":"import_data","target":"1","data":"Zm9v","last":1)",
       "E_PROTO_003 field \"last\" must be true or false, got number"},
  });
}

// --- input

TEST(DecodeRequest, ReadsMessagesInBothForms) {
  const GenerateRequest request = decode<GenerateRequest>(
      R"("messages":[{"role":"developer","content":"be kind"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
      R"({"role":"assistant","content":""},{"role":"tool","content":"4"}])");
  ASSERT_EQ(request.input.messages.size(), 4u);
  EXPECT_EQ(request.input.messages[0].role, "system") << "developer is the newer name of system";
  EXPECT_EQ(request.input.messages[1].content, "ab");
  EXPECT_EQ(request.input.messages[2].content, "");
  EXPECT_EQ(request.input.messages[3].role, "tool");
}

TEST(DecodeRequest, RefusesBadInput) {
  const std::string parts =
      R"( must be a string or an array of {"type": "text", "text": ...} and, for a user or a tool, {"type": "image_url", "image_url": {"url": ...}} or, for a user, {"type": "input_audio", "input_audio": {"data": ..., "format": ...}})";
  expect_refusals({
      {R"("type":"generate")", "E_PROTO_003 field \"prompt\" or field \"messages\" is required"},
      {R"("prompt":"")", "E_PROTO_003 field \"prompt\" must not be empty"},
      {R"("prompt":["a"])", "E_PROTO_003 field \"prompt\" must be a string, got array"},
      {R"("prompt":"a\u0000")", "E_PROTO_003 field \"prompt\" must not contain NUL characters"},
      {"\"prompt\":\"\xe2\x82\"", "E_PROTO_003 field \"prompt\" is not valid UTF-8"},
      {R"("prompt":"a","messages":[])",
       "E_PROTO_003 field \"prompt\" and field \"messages\" exclude each other: leave one of the two out"},
      {R"("messages":[])", "E_PROTO_003 field \"messages\" must contain at least one message"},
      {R"("messages":{})", "E_PROTO_003 field \"messages\" must be an array, got object"},
      {R"("messages":["a"])", "E_PROTO_003 field \"messages[0]\" must be an object"},
      {R"("messages":[{"content":"a"}])", "E_PROTO_003 field \"messages[0].role\" is required"},
      {R"("messages":[{"role":"user","content":"a"},{"role":"robot","content":"a"}])",
       "E_PROTO_003 field \"messages[1].role\" must be \"system\", \"user\", \"assistant\", \"tool\" or \"developer\""},
      {R"("messages":[{"role":"user"}])", "E_PROTO_003 field \"messages[0].content\" is required"},
      {R"("messages":[{"role":"user","content":5}])", "E_PROTO_003 field \"messages[0].content\" must be a string, got number"},
      {R"("messages":[{"role":"user","content":"\u0000"}])",
       "E_PROTO_003 field \"messages[0].content\" must not contain NUL characters"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url"}]}])",
       "E_PROTO_003 field \"messages[0].content[0].image_url\" is required"},
      {R"("messages":[{"role":"user","content":[7]}])", "E_PROTO_003 field \"messages[0].content\"" + parts},
      {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\xff\"}]}]",
       "E_PROTO_003 field \"messages[0].content\" is not valid UTF-8"},
  });
}

TEST(DecodeRequest, ImagesStandAmongTheTextOfUsers) {
  const auto request = decode_request(
      R"({"id":"1","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"one"},)"
      R"({"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}},{"type":"text","text":"two"},)"
      R"({"type":"image","path":"/a/b.png"},{"type":"image_url","image_url":"file:///c.png"},)"
      R"({"type":"image","url":"http://d"}]}]})");
  ASSERT_TRUE(request) << request.error().error.message;
  const Input& input = std::get<GenerateRequest>(request->body).input;
  EXPECT_EQ(input.messages.at(1).content, "onetwo");
  ASSERT_EQ(input.images.size(), 4u);
  using Kind = ImageSource::Kind;
  const auto is = [&](std::size_t i, std::size_t at, Kind kind, const char* text) {
    EXPECT_EQ(input.images[i].message, 1u) << i;
    EXPECT_EQ(input.images[i].at, at) << i;
    EXPECT_EQ(input.images[i].source.kind, kind) << i;
    EXPECT_EQ(input.images[i].source.text, text) << i;
  };
  is(0, 3, Kind::data, "data:image/png;base64,AA==");
  is(1, 6, Kind::path, "/a/b.png");
  is(2, 6, Kind::path, "/c.png");
  is(3, 6, Kind::url, "http://d");
}

TEST(DecodeRequest, ImagesStandInResultsOfTools) {
  const std::string result =
      R"({"id":"1","messages":[{"role":"user","content":"look"},{"role":"tool","tool_call_id":"c","content":[)"
      R"({"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}PART]}]})";
  const auto with = [&](const std::string& part) {
    std::string request = result;
    return decode_request(request.replace(request.find("PART"), 4, part));
  };
  const auto request = with("");
  ASSERT_TRUE(request) << request.error().error.message;
  const Input& input = std::get<GenerateRequest>(request->body).input;
  EXPECT_EQ(input.messages.at(1), (ChatMessage{"tool", "a", R"({"tool_call_id":"c"})"}));
  ASSERT_EQ(input.images.size(), 1u);
  EXPECT_EQ(input.images[0].message, 1u);
  EXPECT_EQ(input.images[0].at, 1u);
  EXPECT_EQ(input.images[0].field, "messages[1].content[1]");
  const auto heard = with(R"(,{"type":"input_audio","input_audio":{"data":"AA==","format":"wav"}})");
  ASSERT_TRUE(heard) << heard.error().error.message;
  EXPECT_EQ(std::get<GenerateRequest>(heard->body).input.images.size(), 1u) << "a clip is not heard there";
}

TEST(DecodeRequest, ADescriptionIsAChatAboutOneImage) {
  const auto request = decode_request(R"({"id":"1","type":"describe_image","data":"AA==","query":"what?","max_tokens":3})");
  ASSERT_TRUE(request) << request.error().error.message;
  const auto& generate = std::get<GenerateRequest>(request->body);
  EXPECT_EQ(generate.input.messages, (std::vector<ChatMessage>{{"user", "what?"}}));
  ASSERT_EQ(generate.input.images.size(), 1u);
  EXPECT_EQ(generate.options.max_tokens, 3);
}

TEST(DecodeRequest, InputMayBeMissingOnlyWithASession) {
  const GenerateRequest request = decode<GenerateRequest>(R"("type":"generate","session_id":"notes")");
  EXPECT_EQ(request.session, "notes");
  EXPECT_TRUE(request.input.empty());
  EXPECT_EQ(refusal(R"("type":"generate","session_id":"")"), "E_PROTO_003 field \"session_id\" must not be empty");
}

// --- options

TEST(DecodeRequest, OptionsHaveTheDocumentedDefaults) {
  const GenerateOptions options = decode<GenerateRequest>(R"("prompt":"hi")").options;
  EXPECT_EQ(options.max_tokens, std::nullopt);
  EXPECT_EQ(options.sampling.temperature, 0);
  EXPECT_EQ(options.sampling.top_p, 1);
  EXPECT_EQ(options.sampling.seed, std::nullopt);
  EXPECT_TRUE(options.stream);
  EXPECT_EQ(options.deadline_ms, std::nullopt);
  EXPECT_EQ(options.timeout_ms, 0);
  EXPECT_EQ(options.request_class, RequestClass::interactive);
  EXPECT_FALSE(options.progress);
}

TEST(DecodeRequest, ReadsEveryOption) {
  const GenerateRequest request = generate(
      R"("model":"m","max_tokens":7,"temperature":0.8,"top_p":0.9,"top_k":40,"min_p":0.05,"seed":18446744073709551615,)"
      R"("stop":["a","b"],"repeat_penalty":1.1,"presence_penalty":-2,"frequency_penalty":2,"ignore_eos":true,"stream":false,)"
      R"("class":"background","target_ttft_ms":100,"target_tbt_ms":30.5,"deadline_ms":0,"timeout_ms":1000,"progress":true)");
  EXPECT_EQ(request.model, "m");
  const GenerateOptions& options = request.options;
  EXPECT_EQ(options.max_tokens, 7);
  EXPECT_EQ(options.sampling.temperature, 0.8);
  EXPECT_EQ(options.sampling.top_p, 0.9);
  EXPECT_EQ(options.sampling.top_k, 40);
  EXPECT_EQ(options.sampling.min_p, 0.05);
  EXPECT_EQ(options.sampling.seed, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(options.sampling.repeat_penalty, 1.1);
  EXPECT_EQ(options.sampling.presence_penalty, -2);
  EXPECT_EQ(options.sampling.frequency_penalty, 2);
  EXPECT_TRUE(options.sampling.ignore_eos);
  EXPECT_EQ(options.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(options.stream);
  EXPECT_EQ(options.request_class, RequestClass::background);
  EXPECT_EQ(options.target_ttft_ms, 100);
  EXPECT_EQ(options.target_tbt_ms, 30.5);
  EXPECT_EQ(options.deadline_ms, 0);
  EXPECT_EQ(options.timeout_ms, 1000);
  EXPECT_TRUE(options.progress);
}

TEST(DecodeRequest, NullMeansAbsent) {
  const GenerateRequest request = generate(
      R"("messages":null,"max_tokens":null,"stop":null,"seed":null,"logit_bias":null,"grammar":null,"tools":null,"response_format":null,"stream":null)");
  EXPECT_EQ(request.input.text, "hi");
  EXPECT_TRUE(request.options.stream);
}

TEST(DecodeRequest, MaxTokensAboveAnyLimitIsLeftToTheEngine) {
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(generate(R"("max_tokens":999999999)").options.max_tokens, 999'999'999);
  EXPECT_EQ(generate(R"("max_tokens":4294967296)").options.max_tokens, kMax);
  EXPECT_EQ(generate(R"("max_tokens":18446744073709551615)").options.max_tokens, kMax);
  EXPECT_EQ(generate(R"("max_tokens":99999999999999999999999)").options.max_tokens, kMax);
}

TEST(DecodeRequest, WholeNumbersMayBeWrittenAsFractionsAndPowers) {
  EXPECT_EQ(generate(R"("max_tokens":10.0)").options.max_tokens, 10);
  EXPECT_EQ(generate(R"("max_tokens":1e2)").options.max_tokens, 100);
  EXPECT_EQ(generate(R"("seed":5.0)").options.sampling.seed, 5u);
}

TEST(DecodeRequest, ReadsTheFurtherSamplers) {
  const SamplingParams sampling =
      generate(R"("typical_p":0.5,"repeat_last_n":-1,"dry_multiplier":0.8,"dry_base":1.5,"dry_allowed_length":3,)"
               R"("dry_penalty_last_n":99,"dry_sequence_breakers":["a","b"],"xtc_probability":0.4,"xtc_threshold":0.2,)"
               R"("mirostat":1,"mirostat_tau":4,"mirostat_eta":0.3)")
          .options.sampling;
  EXPECT_EQ(sampling.typical_p, 0.5);
  EXPECT_EQ(sampling.repeat_last_n, -1);
  EXPECT_EQ(sampling.dry_multiplier, 0.8);
  EXPECT_EQ(sampling.dry_base, 1.5);
  EXPECT_EQ(sampling.dry_allowed_length, 3);
  EXPECT_EQ(sampling.dry_penalty_last_n, 99);
  EXPECT_EQ(sampling.dry_sequence_breakers, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(sampling.xtc_probability, 0.4);
  EXPECT_EQ(sampling.xtc_threshold, 0.2);
  EXPECT_EQ(sampling.mirostat, 1);
  EXPECT_EQ(sampling.mirostat_tau, 4);
  EXPECT_EQ(sampling.mirostat_eta, 0.3);
  EXPECT_EQ(sampling.given.count(), 11U);
  EXPECT_EQ(generate(R"("max_tokens":1)").options.sampling.dry_sequence_breakers, std::nullopt);
}

std::string many_texts(int count) {
  std::string texts;
  for (int i = 0; i < count; ++i) texts += std::format("{}\"{}\"", i == 0 ? "" : ",", i);
  return texts;
}

TEST(DecodeRequest, RefusesOptionsByName) {
  const std::string bias_targets =
      R"("logit_bias" must have token ids or texts, such as {"15": -100} or [[15, -100], ["no", -1]])";
  const auto row = [](const std::string& field, const std::string& problem) {
    return Refusal{R"("prompt":"hi",)" + field, "E_PROTO_003 field " + problem};
  };
  expect_refusals({
      row(R"("max_tokens":"5")", "\"max_tokens\" must be an integer, got string"),
      row(R"("max_tokens":1.5)", "\"max_tokens\" must be an integer, got a number with a fraction"),
      row(R"("temperature":-0.1)", "\"temperature\" must be at least 0 and at most 100"),
      row(R"("temperature":1e400)", "\"temperature\" must be at least 0 and at most 100"),
      row(R"("temperature":"hot")", "\"temperature\" must be a number, got string"),
      row(R"("temperature":true)", "\"temperature\" must be a number, got boolean"),
      row(R"("top_p":1.01)", "\"top_p\" must be at least 0 and at most 1"),
      row(R"("top_k":-1)", "\"top_k\" must be 0 to 2147483647"),
      row(R"("top_k":2147483648)", "\"top_k\" must be 0 to 2147483647"),
      row(R"("min_p":1)", "\"min_p\" must be at least 0 and below 1"),
      row(R"("typical_p":0)", "\"typical_p\" must be above 0 and at most 1"),
      row(R"("repeat_last_n":-2)", "\"repeat_last_n\" must be -1 to 2147483647"),
      row(R"("dry_base":0.5)", "\"dry_base\" must be at least 1 and at most 100"),
      row(R"("dry_allowed_length":0)", "\"dry_allowed_length\" must be 1 to 2147483647"),
      row(R"("dry_sequence_breakers":"x")", "\"dry_sequence_breakers\" must be an array, got string"),
      row(R"("dry_sequence_breakers":[""])", "\"dry_sequence_breakers\" must not be empty"),
      row(R"("xtc_probability":1.5)", "\"xtc_probability\" must be at least 0 and at most 1"),
      row(R"("mirostat":3)", "\"mirostat\" must be 0 to 2"),
      row(R"("mirostat_eta":2)", "\"mirostat_eta\" must be at least 0 and at most 1"),
      row(R"("repeat_penalty":0)", "\"repeat_penalty\" must be above 0 and at most 100"),
      row(R"("presence_penalty":2.1)", "\"presence_penalty\" must be at least -2 and at most 2"),
      row(R"("frequency_penalty":-3)", "\"frequency_penalty\" must be at least -2 and at most 2"),
      row(R"("seed":1e30)", "\"seed\" must be 0 to 18446744073709551615"),
      row(R"("seed":"x")", "\"seed\" must be an integer, got string"),
      row(R"("stop":["a",1])", "\"stop\" must be a string, got number"),
      row(R"("stop":{})", "\"stop\" must be a string, got object"),
      row(R"("stop":[)" + many_texts(65) + "]", "\"stop\" has 65 strings, but the limit is 64"),
      row(R"("stop":")" + std::string(1025, 'x') + "\"", "\"stop\" is 1025 bytes, at most 1024 are accepted"),
      row(R"("stop":"\u0000")", "\"stop\" must not contain NUL characters"),
      row(R"("stream":1)", "\"stream\" must be true or false, got number"),
      row(R"("ignore_eos":"yes")", "\"ignore_eos\" must be true or false, got string"),
      row(R"("progress":[])", "\"progress\" must be true or false, got array"),
      row(R"("class":"urgent")", "\"class\" must be \"interactive\" or \"background\""),
      row(R"("deadline_ms":-1)", "\"deadline_ms\" must be 0 to 31536000000"),
      row(R"("timeout_ms":31536000001)", "\"timeout_ms\" must be 0 to 31536000000"),
      row(R"("target_ttft_ms":-1)", "\"target_ttft_ms\" must be at least 0 and at most 3600000"),
      row(R"("target_tbt_ms":"30")", "\"target_tbt_ms\" must be a number, got string"),
      row(R"("model":5)", "\"model\" must be a string, got number"),
      row(R"("logit_bias":"5")", "\"logit_bias\" must be an object, got string"),
      row(R"("logit_bias":[5])", "\"logit_bias\" must have pairs such as [15, -100]"),
      row(R"("logit_bias":{"-1":1})", bias_targets),
      row(R"("logit_bias":{"99999999999":1})", bias_targets),
      row(R"("logit_bias":{"5":true})", "\"logit_bias\" must be a number, got boolean"),
      row(R"("grammar":")" + std::string(262145, 'x') + "\"", "\"grammar\" is 262145 bytes, at most 262144 are accepted"),
      row(R"("grammar":{})", "\"grammar\" must be a string, got object"),
      row(R"("tools":[{}])", "\"tools[0].type\" is required"),
      row(R"("tools":[{"type":"function","function":{"name":"f"}}])", "\"tools\" is only valid with \"messages\""),
      row(R"("response_format":{"type":"xml"})",
          "\"response_format.type\" must be \"text\", \"json_object\" or \"json_schema\""),
      row(R"("response_format":{})", "\"response_format.type\" is required"),
      row(R"("response_format":{"type":"json_schema"})", "\"response_format.json_schema\" is required"),
      row(R"("response_format":{"type":"json_schema","json_schema":{}})", "\"response_format.json_schema.schema\" is required"),
      row(R"("response_format":{"type":"json_schema","json_schema":{"schema":"x"}})",
          "\"response_format.json_schema.schema\" must be an object, got string"),
      row(R"("response_format":{"type":"json_schema","json_schema":{"strict":1,"schema":{}}})",
          "\"response_format.json_schema.strict\" must be true or false, got number"),
      row(R"("grammar":"root ::= [a]","response_format":{"type":"json_object"})",
          "\"response_format\" and \"grammar\" exclude each other: leave one of the two out"),
      row(R"("response_format":"text")", "\"response_format\" must be an object, got string"),
  });
  EXPECT_EQ(refusal(R"("prompt":"hi","logit_bias":{"5":100.5})").substr(0, 43),
            "E_PROTO_003 field \"logit_bias\" must be at l");
}

TEST(DecodeRequest, ReadsAGrammar) {
  EXPECT_EQ(generate(R"("grammar":"root ::= \"x\"")").options.grammar, "root ::= \"x\"");
  EXPECT_EQ(generate(R"("grammar":"")").options.grammar, "");
}

TEST(DecodeRequest, ReadsAResponseFormatAsASchema) {
  EXPECT_TRUE(generate(R"("strict_schema":true)").options.strict_schema);
  EXPECT_EQ(generate(R"("response_format":{"type":"text"})").options.json_schema, "");
  EXPECT_EQ(generate(R"("response_format":{"type":"json_object"})").options.json_schema, R"({"type":"object"})");
  EXPECT_EQ(generate(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,)"
                     R"("schema":{"z":[1, 2],"a":{"b":"\u00e9"}}}})")
                .options.json_schema,
            R"({"z":[1,2],"a":{"b":"é"}})");
}

TEST(DecodeRequest, AcceptsTheEmptyValuesOfUnservedOptions) {
  generate(R"("grammar":"","tools":[],"response_format":{"type":"text"})");
}

TEST(DecodeRequest, LogitBiasForbidsWithFalseAndFromMinusAHundred) {
  const auto bias = generate(R"("logit_bias":{"1":false,"2":-100,"3":-1e9,"4":-99.5,"5":100})").options.sampling.logit_bias;
  ASSERT_EQ(bias.size(), 5u);
  for (const auto& [token, value] : bias) EXPECT_EQ(std::isinf(value), token <= 3) << token;
  EXPECT_EQ(bias[3], (std::pair<Token, float>{4, -99.5f}));
  EXPECT_EQ(bias[4], (std::pair<Token, float>{5, 100.0f}));
}

TEST(DecodeRequest, StopMayBeOneString) {
  EXPECT_EQ(generate(R"("stop":"\n")").options.stop, std::vector<std::string>{"\n"});
}

// --- the other types

TEST(DecodeRequest, GenerateStreamAndRegenerateTakeASessionAndNoInput) {
  const GenerateRequest stream = decode<GenerateRequest>(R"("type":"generate_stream","session_id":"s","max_tokens":3)");
  EXPECT_EQ(stream.session, "s");
  EXPECT_EQ(stream.options.max_tokens, 3);
  EXPECT_FALSE(stream.regenerate);
  EXPECT_TRUE(decode<GenerateRequest>(R"("type":"regenerate","session_id":"s")").regenerate);
  expect_refusals({
      {R"("type":"generate_stream")", "E_PROTO_003 field \"session_id\" is required"},
      {R"("type":"regenerate","session_id":5)", "E_PROTO_003 field \"session_id\" must be a string, got number"},
      {R"("type":"regenerate","session_id":"s","prompt":"x")",
       "E_PROTO_003 field \"prompt\" is not valid for regenerate: send it with generate or append_input"},
      {R"("type":"generate_stream","session_id":"s","messages":[])",
       "E_PROTO_003 field \"messages\" is not valid for generate_stream: send it with generate or append_input"},
      {R"("type":"generate_stream","session_id":"s","stop":5)", "E_PROTO_003 field \"stop\" must be a string, got number"},
  });
}

TEST(DecodeRequest, CreateSessionReadsItsFields) {
  const CreateSessionRequest request = decode<CreateSessionRequest>(
      R"("type":"create_session","model":"m","system":"s","name":"n","mode":"chat","ttl_s":60,"on_full":"error","ephemeral":true,"public":false,"metadata":{"title":"t"})");
  EXPECT_EQ(request.metadata, R"({"title":"t"})");
  EXPECT_TRUE(request.takes_default_system);
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.system, "s");
  EXPECT_EQ(request.name, "n");
  EXPECT_EQ(request.mode, SessionMode::chat);
  EXPECT_EQ(request.ttl_s, 60);
  EXPECT_TRUE(request.is_ephemeral);
  EXPECT_FALSE(request.is_public);
  EXPECT_EQ(request.on_full, OnFull::error);
  EXPECT_EQ(decode<CreateSessionRequest>(R"("type":"create_session")").mode, SessionMode::automatic);
  const auto shifts = decode<CreateSessionRequest>(R"("type":"create_session","on_full":"shift","n_keep":7)");
  EXPECT_EQ(shifts.on_full, OnFull::shift);
  EXPECT_EQ(shifts.n_keep, 7);
  EXPECT_EQ(decode<CreateSessionRequest>(R"("type":"create_session","on_full":"shift")").n_keep, 0);
  EXPECT_EQ(decode<CreateSessionRequest>(R"("type":"create_session","mode":"text")").mode, SessionMode::text);
}

TEST(DecodeRequest, CreateSessionRefusesByName) {
  expect_refusals({
      {R"("type":"create_session","mode":"poem")", "E_PROTO_003 field \"mode\" must be \"auto\", \"chat\" or \"text\""},
      {R"("type":"create_session","ttl_s":-1)", "E_PROTO_003 field \"ttl_s\" must be 0 to 315360000"},
      {R"("type":"create_session","name":")" + std::string(129, 'n') + "\"",
       "E_PROTO_003 field \"name\" is 129 bytes, at most 128 are accepted"},
      {R"("type":"create_session","on_full":"explode")", "E_PROTO_003 field \"on_full\" must be \"error\" or \"shift\""},
      {R"("type":"create_session","on_full":1)", "E_PROTO_003 field \"on_full\" must be a string, got number"},
      {R"("type":"create_session","n_keep":4)", "E_PROTO_003 field \"n_keep\" is only valid with on_full \"shift\""},
      {R"("type":"create_session","on_full":"error","n_keep":4)",
       "E_PROTO_003 field \"n_keep\" is only valid with on_full \"shift\""},
      {R"("type":"create_session","on_full":"shift","n_keep":-1)", "E_PROTO_003 field \"n_keep\" must be 0 to 2147483647"},
      {R"("type":"create_session","ephemeral":1)", "E_PROTO_003 field \"ephemeral\" must be true or false, got number"},
      {R"("type":"create_session","public":"no")", "E_PROTO_003 field \"public\" must be true or false, got string"},
  });
}

TEST(DecodeRequest, AppendInputTakesTextOrMessages) {
  const AppendRequest text = decode<AppendRequest>(R"("type":"append_input","session_id":"s","text":"more")");
  EXPECT_EQ(text.session, "s");
  EXPECT_EQ(text.input.text, "more");
  EXPECT_EQ(decode<AppendRequest>(R"("type":"append_input","session_id":"s","messages":[{"role":"user","content":"x"}])")
                .input.messages.size(),
            1u);
  expect_refusals({
      {R"("type":"append_input","text":"x")", "E_PROTO_003 field \"session_id\" is required"},
      {R"("type":"append_input","session_id":"s")", "E_PROTO_003 field \"text\" or field \"messages\" is required"},
      {R"("type":"append_input","session_id":"s","text":"")", "E_PROTO_003 field \"text\" must not be empty"},
      {R"("type":"append_input","session_id":"s","text":"x","messages":[])",
       "E_PROTO_003 field \"text\" and field \"messages\" exclude each other: leave one of the two out"},
  });
}

TEST(DecodeRequest, CancelTakesATargetOrASession) {
  EXPECT_EQ(decode<CancelRequest>(R"("type":"cancel","target":"r9")").target, "r9");
  EXPECT_EQ(decode<CancelRequest>(R"("type":"cancel","session_id":"s")").session, "s");
  expect_refusals({
      {R"("type":"cancel")", "E_PROTO_003 field \"target\" or field \"session_id\" is required, and only one is allowed"},
      {R"("type":"cancel","target":"a","session_id":"b")",
       "E_PROTO_003 field \"target\" or field \"session_id\" is required, and only one is allowed"},
      {R"("type":"cancel","target":9)", "E_PROTO_003 field \"target\" must be a string, got number"},
  });
}

TEST(DecodeRequest, SessionCommandsReadTheirFields) {
  EXPECT_EQ(decode<EndSessionRequest>(R"("type":"end_session","session_id":"s")").session, "s");
  EXPECT_EQ(decode<TouchRequest>(R"("type":"touch","session_id":"s")").session, "s");
  EXPECT_EQ(decode<GetSessionRequest>(R"("type":"get_session","session_id":"s")").session, "s");
  const auto fork = decode<ForkRequest>(R"("type":"fork_session","session_id":"s","name":"branch")");
  EXPECT_EQ(fork.session, "s");
  EXPECT_EQ(fork.name, "branch");
  EXPECT_FALSE(fork.turn);
  EXPECT_EQ(decode<ForkRequest>(R"("type":"fork_session","session_id":"s","turn":-1)").turn, ForkRequest::kSystemOnly);
  EXPECT_EQ(decode<ForkRequest>(R"("type":"fork_session","session_id":"s","turn":3,"metadata":{"a":"b"})").metadata,
            (std::vector<MetadataChange>{{R"("a")", R"("b")"}}));
  const auto update =
      decode<UpdateSessionRequest>(R"("type":"update_session","session_id":"s","metadata":{"a\"":"b\n","c":null,"d":""})");
  EXPECT_FALSE(update.name);
  EXPECT_FALSE(update.replaces_metadata);
  EXPECT_EQ(update.metadata, (std::vector<MetadataChange>{{R"("a\"")", R"("b\n")"}, {R"("c")", ""}, {R"("d")", R"("")"}}));
  EXPECT_EQ(decode<UpdateSessionRequest>(R"("type":"update_session","session_id":"s","name":"")").name, "");
  const auto rewind = decode<RewindSessionRequest>(R"("type":"rewind_session","session_id":"s","turn":2)");
  EXPECT_EQ(rewind.session, "s");
  EXPECT_EQ(rewind.turn, 2);
  expect_refusals({
      {R"("type":"end_session")", "E_PROTO_003 field \"session_id\" is required"},
      {R"("type":"touch","session_id":null)", "E_PROTO_003 field \"session_id\" is required"},
      {R"("type":"get_session","session_id":[])", "E_PROTO_003 field \"session_id\" must be a string, got array"},
      {R"("type":"fork_session","session_id":"s","name":1)", "E_PROTO_003 field \"name\" must be a string, got number"},
      {R"("type":"fork_session","session_id":"s","turn":-2)", "E_PROTO_003 field \"turn\" must be -1 to 2147483647"},
      {R"("type":"update_session","session_id":"s")", "E_PROTO_003 field \"name\" or field \"metadata\" is required"},
      {R"("type":"update_session","session_id":"s","name":")" + std::string(129, 'n') + "\"",
       "E_PROTO_003 field \"name\" is 129 bytes, at most 128 are accepted"},
      {R"("type":"update_session","session_id":"s","metadata":{"a":1})",
       "E_PROTO_003 field \"metadata\" must be a string, got number"},
      {R"("type":"update_session","session_id":"s","metadata":{"":null})", "E_PROTO_003 field \"metadata\" must not be empty"},
      {R"("type":"update_session","session_id":"s","metadata":{"a":")" + std::string(513, 'v') + "\"}",
       "E_PROTO_003 field \"metadata\" is 513 bytes, at most 512 are accepted"},
      {R"("type":"create_session","metadata":{"a":null})", "E_PROTO_003 field \"metadata\" must be a string, got null"},
      {R"("type":"list_sessions","order":"new")", "E_PROTO_003 field \"order\" must be \"asc\" or \"desc\""},
      {R"("type":"list_sessions","q":")" + std::string(257, 'q') + "\"",
       "E_PROTO_003 field \"q\" is 257 bytes, at most 256 are accepted"},
      {R"("type":"rewind_session","session_id":"s")", "E_PROTO_003 field \"turn\" is required"},
      {R"("type":"rewind_session","session_id":"s","turn":-1)", "E_PROTO_003 field \"turn\" must be 0 to 2147483647"},
  });
}

TEST(DecodeRequest, PlainTypesNeedNothingElse) {
  EXPECT_EQ(decode<SessionListRequest>(R"("type":"list_sessions")").limit, 10'000);
  const auto page = decode<SessionListRequest>(R"("type":"list_sessions","after":"s","limit":2)");
  EXPECT_EQ(page.after, "s");
  EXPECT_EQ(page.limit, 2);
  EXPECT_EQ(page.order, SessionOrder::oldest_first);
  const auto found = decode<SessionListRequest>(R"("type":"list_sessions","order":"desc","q":"a b")");
  EXPECT_EQ(found.order, SessionOrder::last_used_first);
  EXPECT_EQ(found.query, "a b");
  decode<ModelsRequest>(R"("type":"models")");
  decode<MetricsRequest>(R"("type":"metrics")");
  decode<PingRequest>(R"("type":"ping")");
}

TEST(DecodeRequest, ATraceGoesBackForSomeSeconds) {
  EXPECT_EQ(decode<TraceRequest>(R"("type":"trace")").span, kTraceDefault);
  EXPECT_EQ(decode<TraceRequest>(R"("type":"trace","seconds":0.5)").span, std::chrono::milliseconds(500));
  for (const char* seconds : {"0", "-1", "3601", "\"1\""})
    EXPECT_FALSE(decode_request(std::format(R"({{"id":"1","type":"trace","seconds":{}}})", seconds)).has_value()) << seconds;
}

TEST(DecodeRequest, AWatchHasAnIntervalAndAHistory) {
  EXPECT_EQ(decode<WatchRequest>(R"("type":"watch")").interval, std::chrono::milliseconds(250));
  const auto watch = decode<WatchRequest>(R"("type":"watch","interval_ms":1000,"history_s":60)");
  EXPECT_EQ(watch.interval, std::chrono::milliseconds(1000));
  EXPECT_EQ(watch.history, std::chrono::seconds(60));
  for (const char* field : {R"("interval_ms":99)", R"("interval_ms":10001)", R"("history_s":-1)", R"("history_s":3601)"})
    EXPECT_FALSE(decode_request(std::format(R"({{"id":"1","type":"watch",{}}})", field)).has_value()) << field;
}

TEST(DecodeRequest, APullNeedsASource) {
  const auto pull = decode_request(R"({"id":"1","type":"pull_model","source":"owner/repo:q4_k_m"})");
  ASSERT_TRUE(pull.has_value());
  EXPECT_EQ(std::get<PullModelRequest>(pull->body).source, "owner/repo:q4_k_m");
  EXPECT_FALSE(decode_request(R"({"id":"1","type":"pull_model"})").has_value());
  EXPECT_FALSE(decode_request(R"({"id":"1","type":"pull_model","source":""})").has_value());
}

TEST(DecodeRequest, MarksInTextsAreTokensOutsideOfSessions) {
  const auto parses = [](std::string_view fields) {
    const auto request = decode_request(std::string(R"({"id":"1",)") + std::string(fields) + "}");
    EXPECT_TRUE(request) << fields;
    const RequestBody& body = request->body;
    if (const auto* generate = std::get_if<GenerateRequest>(&body)) return generate->input.parses_special;
    if (const auto* append = std::get_if<AppendRequest>(&body)) return append->input.parses_special;
    return std::get<CreateSessionRequest>(body).parses_special;
  };
  EXPECT_TRUE(parses(R"("prompt":"a")"));
  EXPECT_FALSE(parses(R"("prompt":"a","parse_special":false)"));
  EXPECT_FALSE(parses(R"("type":"generate","session_id":"s","prompt":"a")"));
  EXPECT_FALSE(parses(R"("type":"append_input","session_id":"s","text":"a")"));
  EXPECT_TRUE(parses(R"("type":"append_input","session_id":"s","text":"a","parse_special":true)"));
  EXPECT_FALSE(parses(R"("type":"create_session","system":"a")"));
  EXPECT_TRUE(parses(R"("type":"create_session","system":"a","parse_special":true)"));
  EXPECT_FALSE(parses(R"("messages":[{"role":"user","content":"a"}])"));
  EXPECT_FALSE(decode_request(R"({"id":"1","messages":[{"role":"user","content":"a"}],"parse_special":true})"));
}

}  // namespace
}  // namespace uma::wire
