{{/* Names, labels, ports and the parts that nodes and routers share. */}}

{{- define "fonn.name" -}}
{{- if eq .Release.Name "fonn" }}fonn{{ else }}{{ printf "%s-fonn" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end -}}

{{/* The ports, for the whole chart. */}}
{{- define "fonn.ports" -}}
{"client": 11211, "nodeAdmin": 11280, "routerAdmin": 11281, "cluster": 11290}
{{- end -}}

{{- define "fonn.selector" -}}
app.kubernetes.io/name: fonn
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "fonn.labels" -}}
{{ include "fonn.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* Labels of pods: nothing that changes with the chart, which would restart them. */}}
{{- define "fonn.podLabels" -}}
{{ include "fonn.selector" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "fonn.image" -}}
{{- include "fonn.pinned" (dict "image" .Values.image "tag" .Chart.AppVersion "name" "image" "allowTags" .Values.allowTags) -}}
{{- end -}}

{{- define "fonn.initImage" -}}
{{- include "fonn.pinned" (dict "image" .Values.initImage "tag" "" "name" "initImage" "allowTags" .Values.allowTags) -}}
{{- end -}}

{{/* An image by its digest. */}}
{{- define "fonn.pinned" -}}
{{- if not (or .image.digest .allowTags) -}}
{{- fail (printf "%s.digest is needed (values.yaml says where it is found), or allowTags: true for a trial" .name) -}}
{{- end -}}
{{ .image.repository }}{{ if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .tag }}{{ end }}
{{- end -}}

{{/* Behind each node's name. With the namespace: TLS heeds a certificate's wildcard before two labels only. */}}
{{- define "fonn.nodeDomain" -}}
{{ include "fonn.name" . }}-node.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* Behind each router's name, which is its address with hyphens. */}}
{{- define "fonn.routerDomain" -}}
{{ include "fonn.name" . }}-router.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* Where Redis Cluster clients find the routers: `pod`, or one address. */}}
{{- define "fonn.advertise" -}}
{{- if .Values.routers.settings.advertise -}}
{{- fail "routers.advertise says what routers.settings.advertise would: give that one" -}}
{{- end -}}
{{- .Values.routers.advertise | default "pod" -}}
{{- end -}}

{{/* The Secret with the certificate, made by cert-manager or not; empty without TLS. */}}
{{- define "fonn.tlsSecret" -}}
{{- with .Values.access -}}
{{- if .certManager.issuerRef.name }}{{ include "fonn.name" $ }}-tls{{ else }}{{ .tlsSecret }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* HOST:PORT of members that others ask for the way in: the first three, so that another number of nodes restarts nobody. */}}
{{- define "fonn.members" -}}
{{- $name := include "fonn.name" . -}}
{{- $ports := include "fonn.ports" . | fromJson -}}
{{- $members := list -}}
{{- range $i := until (int (min 3 .Values.nodes.replicas)) -}}
{{- $members = append $members (printf "%s-node-%d.%s:%v" $name $i (include "fonn.nodeDomain" $) $ports.cluster) -}}
{{- end -}}
{{- join "," $members -}}
{{- end -}}

{{/* A setting of the configuration file. */}}
{{- define "fonn.toml" -}}
{{- range $key, $value := . }}
{{ $key }} = {{ if kindIs "float64" $value }}{{ int64 $value }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{- end -}}

{{/* Settings about access, the same for node and router. */}}
{{- define "fonn.access" -}}
{{- $settings := dict -}}
{{- with .Values.access -}}
{{- if .usersSecret }}{{ $_ := set $settings "users_file" "/etc/fonn/users/users.toml" }}{{ end -}}
{{- if .insecure }}{{ $_ := set $settings "insecure" true }}{{ end -}}
{{- if include "fonn.tlsSecret" $ -}}
{{- $_ := set $settings "tls_cert" "/etc/fonn/tls/tls.crt" -}}
{{- $_ := set $settings "tls_key" "/etc/fonn/tls/tls.key" -}}
{{- $_ := set $settings "tls_client_ca" "/etc/fonn/tls/ca.crt" -}}
{{- if .revocations }}{{ $_ := set $settings "tls_client_crl" "/etc/fonn/tls/ca.crl" }}{{ end -}}
{{- else -}}
{{- /* Over TLS the certificate says by which names the admin port is called. */ -}}
{{- $_ := set $settings "admin_host" (list "*.svc" "*.svc.cluster.local") -}}
{{- end -}}
{{- if not (or .usersSecret .insecure) -}}
{{- fail "access.usersSecret has to name a Secret with users.toml, or access.insecure has to be true" -}}
{{- end -}}
{{- if and .usersSecret (not (include "fonn.tlsSecret" $)) -}}
{{- fail "where there are users, nodes know each other and routers by certificates: access.tlsSecret or access.certManager.issuerRef is needed" -}}
{{- end -}}
{{- if and .revocations (not .tlsSecret) -}}
{{- fail "access.revocations needs access.tlsSecret, a Secret with ca.crl: cert-manager makes no list of revoked certificates" -}}
{{- end -}}
{{- if and .tlsSecret .certManager.issuerRef.name -}}
{{- fail "access.tlsSecret or access.certManager.issuerRef, not both: cert-manager makes a Secret of its own" -}}
{{- end -}}
{{- end -}}
{{- toJson $settings -}}
{{- end -}}

{{- define "fonn.accessVolumes" -}}
{{- with .Values.access.usersSecret }}
- name: users
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with include "fonn.tlsSecret" . }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- define "fonn.accessMounts" -}}
{{- if .Values.access.usersSecret }}
- {name: users, mountPath: /etc/fonn/users, readOnly: true}
{{- end }}
{{- if include "fonn.tlsSecret" . }}
- {name: tls, mountPath: /etc/fonn/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "fonn.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "fonn.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Alive: the process answers. Ready: it takes requests, and a node has read the bucket's index (or two minutes are over, or the
bucket fails). HTTPS where there are certificates. */}}
{{- define "fonn.probes" -}}
{{- $scheme := ternary "HTTPS" "HTTP" (not (empty (include "fonn.tlsSecret" .))) -}}
startupProbe:
  httpGet: {path: /healthz, port: admin, scheme: {{ $scheme }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: admin, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: admin, scheme: {{ $scheme }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end -}}

{{/* Not two of a kind on one machine if it can be had, and evenly over zones. */}}
{{- define "fonn.spread" -}}
{{- $labels := printf "%s\napp.kubernetes.io/component: %s" (include "fonn.selector" .root) .component | fromYaml | toJson -}}
- maxSkew: 1
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: {{ .zones }}
  labelSelector: {matchLabels: {{ $labels }}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector: {matchLabels: {{ $labels }}}
{{- end -}}
