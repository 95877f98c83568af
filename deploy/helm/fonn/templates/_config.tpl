{{/* The configuration files. A change of one restarts the pods that read it. */}}

{{- define "fonn.nodeToml" -}}
{{- $ports := include "fonn.ports" . | fromJson }}
{{- $disk := div (mul (int .Values.nodes.storage.sizeGi) 1024 85) 100 }}
{{- $node := dict
  "listen" (list (printf "0.0.0.0:%v" $ports.client))
  "admin_listen" (printf "0.0.0.0:%v" $ports.nodeAdmin)
  "cluster_listen" (printf "0.0.0.0:%v" $ports.cluster)
  "data_dir" "/var/cache/fonn"
  "ram_budget" .Values.nodes.ramBudget
  "disk_budget" (printf "%dm" $disk)
  "log_format" "json" }}
{{- with .Values.coldTier }}
{{- if .url }}{{ $_ := set $node "cold_tier" .url }}{{ end }}
{{- if .budget }}{{ $_ := set $node "cold_budget" .budget }}{{ end }}
{{- if .region }}{{ $_ := set $node "region" .region }}{{ end }}
{{- if .s3Region }}{{ $_ := set $node "s3_region" .s3Region }}{{ end }}
{{- if .s3Endpoint }}{{ $_ := set $node "s3_endpoint" .s3Endpoint }}{{ end }}
{{- end }}
{{- include "fonn.toml" (merge (deepCopy .Values.nodes.settings) $node (include "fonn.access" . | fromJson)) }}
{{- end -}}

{{- define "fonn.routerToml" -}}
{{- $ports := include "fonn.ports" . | fromJson }}
{{- $router := dict
  "listen" (list (printf "0.0.0.0:%v" $ports.client))
  "admin_listen" (printf "0.0.0.0:%v" $ports.routerAdmin)
  "cluster" (splitList "," (include "fonn.members" .))
  "ram_budget" .Values.routers.ramBudget
  "log_format" "json" }}
{{- $advertise := include "fonn.advertise" . }}
{{- if ne $advertise "pod" }}{{ $_ := set $router "advertise" $advertise }}{{ end }}
{{- include "fonn.toml" (merge (deepCopy .Values.routers.settings) $router (include "fonn.access" . | fromJson)) }}
{{- end -}}
