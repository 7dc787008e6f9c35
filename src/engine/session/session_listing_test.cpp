#include "engine/session/session_listing.h"

#include <string>

#include <gtest/gtest.h>

namespace uma::engine {
namespace {

TEST(SessionListing, APositionIsGivenBack) {
  kv::SessionSummary session;
  session.id = SessionId{"0123456789abcdef0123456789abcdef"};
  session.created_s = 5;
  session.last_used_s = 1'700'000'000;
  EXPECT_EQ(position_text(position_of(session, SessionOrder::last_used_first)), "1700000000.0123456789abcdef0123456789abcdef");
  for (const SessionOrder order : {SessionOrder::oldest_first, SessionOrder::last_used_first}) {
    EXPECT_EQ(parse_position(position_text(position_of(session, order))), position_of(session, order));
  }
  for (const std::string_view other : {"", ".", "5", "5.", ".a", "x.a", "5x.a", "99999999999999999999.a", "5.x",
                                       "x.0123456789abcdef0123456789abcdef", "5.0123456789abcdef0123456789abcdeF"}) {
    EXPECT_FALSE(parse_position(other)) << other;
  }
}

TEST(SessionSearch, FindsEveryWordInNameOrMetadata) {
  kv::SessionSummary session;
  session.name = "Holiday";
  session.metadata = R"({"title":"Ärger in \"Łódź\"","tags":"work,HOME","note":"a\nb"})";
  for (const std::string_view query :
       {"", "  ", "holiday", "HOLI", "ärger", "ÄRGER", "łódź\"", "work,home", "home day", "a b"}) {
    EXPECT_TRUE(SessionSearch(query).matches(session)) << query;
  }
  for (const std::string_view query : {"title", "holiday x", "holidayärger", "arger", "\\n", "{"}) {
    EXPECT_FALSE(SessionSearch(query).matches(session)) << query;
  }
  EXPECT_TRUE(SessionSearch("a a a a a a a holiday nothing").matches(session)) << "the first eight words count";
  EXPECT_FALSE(SessionSearch("a a a a a a a nothing").matches(session));
  EXPECT_TRUE(SessionSearch(" \t").is_empty());
  EXPECT_FALSE(SessionSearch("x").is_empty());
}

}  // namespace
}  // namespace uma::engine
