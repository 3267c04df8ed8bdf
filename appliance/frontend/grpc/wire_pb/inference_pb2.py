"""Messages of ``proto/inference.proto``; the stub beside this file lists them."""

from appliance.frontend.grpc.wire_pb import module_contents

globals().update(module_contents("inference.proto"))
