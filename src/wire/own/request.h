// A client's request as a value. Every field has been validated.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "core/error.h"
#include "core/image.h"
#include "core/picture.h"
#include "core/request.h"
#include "wire/openai/embedding_codec.h"
#include "wire/own/live_json.h"
#include "wire/own/trace_json.h"

namespace uma::wire {

// Cancels one generation, by the id of the request on the same connection or by its session. Exactly one is set.
struct CancelRequest {
  std::string target;
  std::string session;
};

struct EndSessionRequest {
  std::string session;
};

struct RewindSessionRequest {
  std::string session;
  std::int32_t turn = 0;  // Last turn to keep.
};

struct TouchRequest {
  std::string session;
};

struct GetSessionRequest {
  std::string session;
};

struct ExportSessionRequest {
  std::string session;
  bool with_kv = false;
};

// Begins an import; the file follows.
struct ImportSessionRequest {
  std::string name;  // Name of the new session; empty: the exported name.
};

// A part of a file that is being imported.
struct ImportDataRequest {
  std::string target;  // Id of the import_session request.
  Bytes data;
  bool is_last = false;
};

struct LoadModelRequest {
  std::string model;  // Empty: the default model.
};
struct UnloadModelRequest {
  std::string model;
};

struct PullModelRequest {
  std::string source;  // See ModelLibrary::pull().
};

struct GetReceiptRequest {
  std::string reply;  // See Service::find_receipt().
};
struct ModelsRequest {};
struct MetricsRequest {};
struct TraceRequest {
  std::chrono::milliseconds span{kTraceDefault};  // How far back the trace goes.
};
struct PingRequest {};
using WatchRequest = LiveRequest;

// generate, generate_stream and regenerate are all decoded to a core GenerateRequest.
using RequestBody =
    std::variant<GenerateRequest, EmbedImagesRequest, PictureRequest, CreateSessionRequest, AppendRequest, CancelRequest,
                 EndSessionRequest, ForkRequest, UpdateSessionRequest, RewindSessionRequest, TouchRequest, GetSessionRequest,
                 SessionListRequest, ExportSessionRequest, ImportSessionRequest, ImportDataRequest, EmbeddingCall, RerankCall,
                 LoadModelRequest, UnloadModelRequest, PullModelRequest, ModelsRequest, MetricsRequest, TraceRequest,
                 PingRequest, WatchRequest, GetReceiptRequest>;

struct Request {
  std::string id;  // The client's id: 1 to 128 bytes of UTF-8 without NUL.
  RequestBody body;
};

// An invalid frame: the error to answer, and the request's id (nullopt: null).
struct RejectedRequest {
  std::optional<std::string> id;
  Error error;
};

}  // namespace uma::wire
