import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;
import org.apache.log4j.Logger;
import org.apache.log4j.varia.NullAppender;

/**
 * Runs kafka.tools.DumpLogSegments many times in one virtual machine. Each line of the input is a JSON array of
 * arguments; each line of the output an object with the tool's `out` and `err` and its exit `code`. What escapes from it is
 * told in `err` as the virtual machine would, without the stack.
 */
public class DumpLogs {
    private static final class Exited extends RuntimeException {
        final int code;

        Exited(int code) {
            this.code = code;
        }
    }

    /** Scala's Console keeps the stream that it finds first, so the stream must stay and what is behind it change. */
    private static final class Switch extends OutputStream {
        ByteArrayOutputStream behind = new ByteArrayOutputStream();

        @Override
        public void write(int value) {
            behind.write(value);
        }

        @Override
        public void write(byte[] bytes, int from, int count) {
            behind.write(bytes, from, count);
        }

        String take() {
            String text = behind.toString(StandardCharsets.UTF_8);
            behind = new ByteArrayOutputStream();
            return text;
        }
    }

    public static void main(String[] arguments) throws Exception {
        Logger.getRootLogger().addAppender(new NullAppender());
        ObjectMapper mapper = new ObjectMapper();
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        Switch out = new Switch();
        Switch err = new Switch();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> {
            throw new Exited(code);
        });
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            int code = 0;
            try {
                kafka.tools.DumpLogSegments.main(mapper.readValue(line, String[].class));
            } catch (Exited exit) {
                code = exit.code;
            } catch (Throwable error) {
                System.err.println("Exception in thread \"main\" " + error);
                code = 1;
            }
            answers.println(mapper.writeValueAsString(Map.of("out", out.take(), "err", err.take(), "code", code)));
        }
        answers.flush();
    }
}
