#include "server/http/peer_user.h"

namespace uma::server {

namespace {

std::unexpected<Error> unknown_peer() {
  return fail(ErrorCode::auth, "this system does not tell umad");
}

}  // namespace

Expected<Unit> PeerUsers::open() {
  return unknown_peer();
}

Expected<uid_t> PeerUsers::user_of(int /*connection*/) {
  return unknown_peer();
}

Expected<uid_t> PeerUsers::user_at(const TcpEnd& end, const TcpEnd& other) {
  return ask(end, other);
}

Expected<uid_t> PeerUsers::ask(const TcpEnd& /*end*/, const TcpEnd& /*other*/) {
  return unknown_peer();
}

}  // namespace uma::server
