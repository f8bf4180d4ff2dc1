import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import kafka.security.authorizer.AclAuthorizer;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Asks Kafka's AclAuthorizer. A line "tree" with the address of a tree, super users and
 * allow.everyone.if.no.acl.found, all separated by tabs, has it read that tree. For any other line (kind, name, host,
 * operation, type, name of the resource, or no such name for any resource of the type) there is a line out, ALLOWED or
 * DENIED.
 */
public class AclDecisions {
    /** A request of this principal from this host. */
    private record Asked(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        public String listenerName() {
            return "PLAINTEXT";
        }

        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.PLAINTEXT;
        }

        public int requestType() {
            return 3;
        }

        public int requestVersion() {
            return 0;
        }

        public String clientId() {
            return "test";
        }

        public int correlationId() {
            return 0;
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        AclAuthorizer authorizer = null;
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            String[] said = line.split("\t", -1);
            if (said[0].equals("tree")) {
                if (authorizer != null) {
                    authorizer.close();
                }
                authorizer = opened(said[1], said[2], said[3]);
                continue;
            }
            Asked asked = new Asked(new KafkaPrincipal(said[0], said[1]), InetAddress.getByName(said[2]));
            AclOperation operation = AclOperation.valueOf(said[3]);
            ResourceType type = ResourceType.valueOf(said[4]);
            answers.println(said.length == 5
                ? authorizer.authorizeByResourceType(asked, operation, type)
                : decided(authorizer, asked, operation, new ResourcePattern(type, said[5], PatternType.LITERAL)));
        }
        authorizer.close();
        answers.flush();
        System.exit(0);
    }

    private static AclAuthorizer opened(String tree, String superUsers, String allowsUnmentioned) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("zookeeper.connect", tree);
        settings.put("super.users", superUsers);
        settings.put("allow.everyone.if.no.acl.found", allowsUnmentioned);
        AclAuthorizer authorizer = new AclAuthorizer();
        authorizer.configure(settings);
        return authorizer;
    }

    private static AuthorizationResult decided(
        AclAuthorizer authorizer, Asked asked, AclOperation operation, ResourcePattern resource
    ) {
        return authorizer.authorize(asked, List.of(new Action(operation, resource, 1, true, true))).get(0);
    }
}
