import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.requests.AbstractRequest;
import org.apache.kafka.common.requests.AbstractResponse;

/**
 * Answers requests with one error. Each line of the input is a JSON object with `api_key`, `version`, `request` (its body
 * in base64), `error_code` and `message`; each line of the output is the body of the response in base64, `null` for no
 * response, or `!` and what went wrong.
 */
public class ErrorResponses {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                out.println(answer(mapper.readTree(line)));
            } catch (RuntimeException error) {
                out.println("!" + error);
            }
        }
        out.flush();
    }

    private static String answer(JsonNode task) {
        short version = (short) task.get("version").asInt();
        ByteBuffer body = ByteBuffer.wrap(Base64.getDecoder().decode(task.get("request").asText()));
        AbstractRequest request =
            AbstractRequest.parseRequest(ApiKeys.forId(task.get("api_key").asInt()), version, body).request;
        Errors error = Errors.forCode((short) task.get("error_code").asInt());
        AbstractResponse response = request.getErrorResponse(0, error.exception(task.get("message").asText()));
        if (response == null) {
            return "null";
        }
        ByteBuffer written = MessageUtil.toByteBuffer(response.data(), version);
        byte[] bytes = new byte[written.remaining()];
        written.get(bytes);
        return Base64.getEncoder().encodeToString(bytes);
    }
}
