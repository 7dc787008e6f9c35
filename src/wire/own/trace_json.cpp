#include "wire/own/trace_json.h"

#include <algorithm>
#include <string_view>

#include "json/json_writer.h"

namespace uma::wire {
namespace {

class TraceWriter {
 public:
  TraceWriter(std::string& out, TimePoint origin) : out_(out), origin_(origin) {}

  void add_thread(const ThreadTrace& thread) {
    begin_event();
    json::ObjectWriter event(out_);
    begin_fields(event, "M", "thread_name", thread.number);
    json::ObjectWriter args(event.begin("args"));
    args.field("name", thread.name);
    args.close();
    event.close();
    for (const TraceSpan& span : thread.spans) add_span(span, thread.number);
  }

 private:
  void add_span(const TraceSpan& span, std::uint32_t thread) {
    if (span.kind->is_of_request) {
      add_stage(span, thread, "b", span.began);
      add_stage(span, thread, "e", span.ended);
      return;
    }
    begin_event();
    json::ObjectWriter event(out_);
    begin_fields(event, "X", span.kind->name, thread);
    event.field("ts", us_of(span.began - origin_));
    event.field("dur", us_of(span.ended - span.began));
    write_numbers(event, span);
    event.close();
  }

  void add_stage(const TraceSpan& span, std::uint32_t thread, std::string_view phase, TimePoint time) {
    begin_event();
    json::ObjectWriter event(out_);
    begin_fields(event, phase, span.kind->name, thread);
    event.field("cat", "request");
    event.field("id", span.numbers[0]);
    event.field("ts", us_of(time - origin_));
    if (phase == "b") write_numbers(event, span);
    event.close();
  }

  static void begin_fields(json::ObjectWriter& event, std::string_view phase, std::string_view name, std::uint32_t thread) {
    event.field("ph", phase);
    event.field("name", name);
    event.field("pid", 1);
    event.field("tid", thread);
  }

  static void write_numbers(json::ObjectWriter& event, const TraceSpan& span) {
    json::ObjectWriter args(event.begin("args"));
    for (std::size_t i = 0; i < TraceKind::kNumbers && !span.kind->numbers[i].empty(); ++i)
      args.field(span.kind->numbers[i], span.numbers[i]);
    args.close();
  }

  void begin_event() {
    if (!is_first_) out_ += ",\n";
    is_first_ = false;
  }
  static double us_of(Duration duration) { return to_ms(duration) * 1000; }

  std::string& out_;
  const TimePoint origin_;
  bool is_first_ = true;
};

}  // namespace

void append_trace(std::string& out, std::span<const ThreadTrace> threads) {
  TimePoint origin = kNever;
  for (const ThreadTrace& thread : threads) {
    for (const TraceSpan& span : thread.spans) origin = std::min(origin, span.began);
  }
  out += R"({"displayTimeUnit":"ms","traceEvents":[)";
  TraceWriter writer(out, origin);
  for (const ThreadTrace& thread : threads) writer.add_thread(thread);
  out += "]}";
}

}  // namespace uma::wire
